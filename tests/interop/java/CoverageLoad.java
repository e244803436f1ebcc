import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * One client of the coverage benchmark, until its process is ended; for every release of the client.
 *
 * <p>Options: kind (produce or consume), namesrv, topic, group. A producer sends from {@code
 * threads} threads, each waiting for its acknowledgement; {@code what} says which messages. A
 * consumer is a push consumer; {@code how} is its filter or its kind. Records, twice a second:
 * {@code count} with the messages so far and the sends that failed.
 */
final class CoverageLoad {
    private static final int SMALL = 100;
    private static final int LARGE = 4_096;
    private static final int ORDERS = 64;
    private static final String[] TAGS = {"TagA", "TagB", "TagC", "TagD"};

    private final Map<String, String> options;
    private final AtomicLong count = new AtomicLong();
    private final AtomicLong failed = new AtomicLong();

    private CoverageLoad(Map<String, String> options) {
        this.options = options;
    }

    public static void main(String[] args) {
        Leashed.endWithParent();
        CoverageLoad load = new CoverageLoad(Harness.options(args));
        try {
            switch (load.options.get("kind")) {
                case "produce" -> load.produce();
                case "consume" -> load.consume();
                default -> throw new IllegalArgumentException(load.options.get("kind"));
            }
        } catch (Exception e) {
            Harness.fail(e);
        }
    }

    private void report() {
        Thread thread = new Thread(() -> {
            while (true) {
                Harness.emit("event", "count", "at_ms", System.currentTimeMillis(),
                    "count", count.get(), "failed", failed.get());
                LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(500));
            }
        }, "report");
        thread.setDaemon(true);
        thread.start();
    }

    // ---- producers ----

    private Message message(String what, long number) {
        byte[] body = new byte[what.equals("compressed") ? LARGE : SMALL];
        Arrays.fill(body, (byte) 'x');
        if (what.equals("bare")) {
            return new Message(options.get("topic"), body);
        }
        String tag = TAGS[(int) (number % TAGS.length)];
        Message message = new Message(options.get("topic"), tag, "order-" + number, body);
        switch (what) {
            case "user properties" -> {
                for (int i = 0; i < 5; i++) {
                    message.putUserProperty("property" + i, "value-" + number % 1_000);
                }
            }
            case "ordered" ->
                MessageAccessor.putProperty(message, "__SHARDINGKEY", "o" + number % ORDERS);
            case "delayed" -> message.setDelayTimeLevel(1);
            default -> { }
        }
        return message;
    }

    private DefaultMQProducer producer(String what) throws Exception {
        DefaultMQProducer producer;
        if (what.equals("half")) {
            TransactionMQProducer transactions = new TransactionMQProducer(options.get("group"));
            transactions.setTransactionListener(new TransactionListener() {
                @Override
                public LocalTransactionState executeLocalTransaction(Message message, Object arg) {
                    return LocalTransactionState.COMMIT_MESSAGE;
                }

                @Override
                public LocalTransactionState checkLocalTransaction(MessageExt message) {
                    return LocalTransactionState.COMMIT_MESSAGE;
                }
            });
            producer = transactions;
        } else {
            producer = new DefaultMQProducer(options.get("group"), what.equals("traced"), null);
        }
        producer.setNamesrvAddr(options.get("namesrv"));
        producer.start();
        return producer;
    }

    private void produce() throws Exception {
        String what = options.get("what");
        DefaultMQProducer producer = producer(what);
        report();
        int threads = Integer.parseInt(options.get("threads"));
        for (int first = 0; first < threads; first++) {
            long begin = first;
            new Thread(() -> {
                for (long number = begin; ; number += threads) {
                    try {
                        send(producer, what, number);
                        count.incrementAndGet();
                    } catch (Exception e) {
                        failed.incrementAndGet();
                    }
                }
            }, "send-" + first).start();
        }
        Thread.currentThread().join();
    }

    private void send(DefaultMQProducer producer, String what, long number) throws Exception {
        Message message = message(what, number);
        switch (what) {
            case "half" -> producer.sendMessageInTransaction(message, null);
            case "ordered" -> producer.send(
                message,
                (queues, sent, order) -> queues.get((int) ((Long) order % queues.size())),
                number % ORDERS);
            default -> producer.send(message);
        }
    }

    // ---- consumers ----

    private void consume() throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.get("group"));
        consumer.setNamesrvAddr(options.get("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        String topic = options.get("topic");
        String how = options.get("how");
        switch (how) {
            case "one tag" -> consumer.subscribe(topic, TAGS[0]);
            case "three tags" -> consumer.subscribe(topic, "TagA || TagB || TagC");
            case "SQL" -> consumer.subscribe(topic, MessageSelector.bySql("TAGS in ('TagA', 'TagB')"));
            default -> consumer.subscribe(topic, "*");
        }
        if (how.equals("broadcast")) {
            // The class has another package in 5.x than in 4.x.
            var model = consumer.getMessageModel();
            consumer.setMessageModel(Enum.valueOf(model.getDeclaringClass(), "BROADCASTING"));
        }
        if (how.equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                took(messages);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                took(messages);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        report();
        Thread.currentThread().join();
    }

    private void took(List<MessageExt> messages) {
        count.addAndGet(messages.size());
    }
}
