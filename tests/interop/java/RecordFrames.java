import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Does once what the benchmark of the broker's path replays, for a recorder that listens between.
 *
 * <p>Options: namesrv, topic, group. Sends one message of 100 B and one of 1 KB, a batch of 32,
 * commits a transaction, and consumes with a push consumer. Uses only what releases 4.9 and 5.x
 * have in common.
 */
final class RecordFrames {
    private static final int BATCH = 32;

    private final String namesrv;
    private final String topic;
    private final String group;

    private RecordFrames(Map<String, String> options) {
        this.namesrv = options.get("namesrv");
        this.topic = options.get("topic");
        this.group = options.get("group");
    }

    public static void main(String[] args) {
        Leashed.endWithParent();
        RecordFrames program = new RecordFrames(Harness.options(args));
        try {
            program.send();
            program.commit();
            program.consume();
        } catch (Exception e) {
            Harness.fail(e);
        }
        System.exit(0);
    }

    private Message message(int number, int size) {
        byte[] body = new byte[size];
        Arrays.fill(body, (byte) 'x');
        return new Message(topic, "TagA", "order-" + (10_000 + number), body);
    }

    private void send() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group + "_producer");
        producer.setNamesrvAddr(namesrv);
        producer.setClientIP("127.0.0.1");
        producer.setInstanceName("producer");
        producer.start();
        producer.send(message(0, 100));
        producer.send(message(1, 1024));
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < BATCH; i++) {
            batch.add(message(100 + i, 100));
        }
        producer.send(batch);
        producer.shutdown();
    }

    private void commit() throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(group + "_transactions");
        producer.setNamesrvAddr(namesrv);
        producer.setClientIP("127.0.0.1");
        producer.setInstanceName("transactions");
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message half, Object argument) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt half) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        producer.sendMessageInTransaction(message(2, 100), null);
        producer.shutdown();
    }

    private void consume() throws Exception {
        CountDownLatch missing = new CountDownLatch(3 + BATCH);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setClientIP("127.0.0.1");
        consumer.setInstanceName("consumer");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> missing.countDown());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        if (!missing.await(60, TimeUnit.SECONDS)) {
            throw new IllegalStateException(missing.getCount() + " messages did not arrive");
        }
        consumer.shutdown();
    }
}
