import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends messages one by one and consumes them with a push consumer in clustering mode.
 *
 * <p>Options: namesrv, topic, group, send and consume (numbers of messages), deadline_s. Records:
 * {@code sent} with the messages per queue ("broker:id"), then {@code consumed} with deliveries
 * and distinct messages. Uses only what releases 4.9 and 5.x have in common.
 */
final class SendAndConsume {
    private final Map<String, String> options;
    private final String topic;

    private SendAndConsume(Map<String, String> options) {
        this.options = options;
        this.topic = options.get("topic");
    }

    public static void main(String[] args) {
        Leashed.endWithParent();
        SendAndConsume program = new SendAndConsume(Harness.options(args));
        try {
            program.send(program.number("send"));
            program.consume(program.number("consume"));
        } catch (Exception e) {
            Harness.fail(e);
        }
        System.exit(0);
    }

    private int number(String option) {
        return Integer.parseInt(options.get(option));
    }

    private void send(int count) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(options.get("group") + "_producer");
        producer.setNamesrvAddr(options.get("namesrv"));
        producer.setSendMsgTimeout(30_000); // the first calls load many classes
        producer.setMqClientApiTimeout(30_000);
        producer.start();
        Map<String, Integer> perQueue = new TreeMap<>();
        for (int i = 0; i < count; i++) {
            byte[] body = ("message " + i).getBytes(StandardCharsets.UTF_8);
            SendResult result = producer.send(new Message(topic, "tag", "key-" + i, body));
            if (result.getSendStatus() != SendStatus.SEND_OK) {
                throw new IllegalStateException("send of message " + i + ": " + result);
            }
            String queue = result.getMessageQueue().getBrokerName()
                + ":" + result.getMessageQueue().getQueueId();
            perQueue.merge(queue, 1, Integer::sum);
        }
        producer.shutdown();
        Harness.emit("event", "sent", "count", count, "queues", perQueue);
    }

    private void consume(int count) throws Exception {
        Set<String> bodies = ConcurrentHashMap.newKeySet();
        AtomicInteger deliveries = new AtomicInteger();
        CountDownLatch missing = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.get("group"));
        consumer.setNamesrvAddr(options.get("namesrv"));
        consumer.setMqClientApiTimeout(30_000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                deliveries.incrementAndGet();
                if (bodies.add(new String(message.getBody(), StandardCharsets.UTF_8))) {
                    missing.countDown();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        missing.await(number("deadline_s"), TimeUnit.SECONDS);
        consumer.shutdown();
        Harness.emit("event", "consumed", "deliveries", deliveries.get(), "distinct", bodies.size());
    }
}
