import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Fills a broker with every kind of message, or sends plain ones until it is stopped.
 *
 * <p>Options: namesrv, broker (its name), address, topic (prefix of all names), round (part of all
 * keys), mode ({@code all} or {@code endless}), count. Records: {@code sent} for each acknowledged
 * message, and at the end of {@code all} one {@code done}, when what the broker does by itself
 * (delayed and retried messages, transactions) is done too.
 */
@SuppressWarnings("deprecation")
final class StoreWriter {
    private static final long DEADLINE_MS = 60_000;

    private final Map<String, String> options;
    private final String prefix;
    private final String round;
    private final Random random = new Random(7);
    private DefaultMQAdminExt admin;

    private StoreWriter(Map<String, String> options) {
        this.options = options;
        this.prefix = options.get("topic");
        this.round = options.get("round");
    }

    public static void main(String[] args) {
        Leashed.endWithParent();
        StoreWriter program = new StoreWriter(Harness.options(args));
        try {
            if (program.options.get("mode").equals("endless")) {
                program.sendEndlessly();
            } else {
                program.sendAll();
            }
        } catch (Exception e) {
            Harness.fail(e);
        }
        System.exit(0);
    }

    private void sendAll() throws Exception {
        admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(options.get("namesrv"));
        admin.setInstanceName("store-writer");
        admin.start();
        createTopic("Plain", 4, Map.of());
        createTopic("Order", 2, Map.of());
        createTopic("Delay", 1, Map.of());
        createTopic("Tx", 1, Map.of());
        createTopic("Inner", 1, Map.of("+queue.type", "BatchCQ"));
        DefaultMQProducer producer = start(new DefaultMQProducer(prefix + "_producer"));
        sendPlain(producer, Integer.parseInt(options.get("count")));
        sendBatches(producer);
        sendCompressed();
        sendOrdered(producer);
        sendDelayed(producer);
        sendTransactions();
        sendBack();
        producer.shutdown();
        Harness.emit("event", "done");
    }

    private void sendEndlessly() throws Exception {
        DefaultMQProducer producer = start(new DefaultMQProducer(prefix + "_producer"));
        producer.setRetryTimesWhenSendFailed(0);
        for (int i = 0; ; i++) {
            try {
                report(producer.send(message("Plain", i, 300 + random.nextInt(600))));
            } catch (Exception e) {
                Harness.emit("event", "ended", "sent", i, "cause", e.getClass().getSimpleName());
                return;
            }
        }
    }

    // ---- parts -------------------------------------------------------------------------------

    private void createTopic(String name, int queues, Map<String, String> attributes)
        throws Exception {
        TopicConfig config = new TopicConfig(prefix + name, queues, queues, 6);
        config.setAttributes(new HashMap<>(attributes));
        admin.createAndUpdateTopicConfig(options.get("address"), config);
    }

    private <T extends DefaultMQProducer> T start(T producer) throws Exception {
        producer.setNamesrvAddr(options.get("namesrv"));
        producer.setInstanceName(producer.getProducerGroup());
        producer.setSendMsgTimeout(10_000);
        producer.start();
        return producer;
    }

    private MessageQueue queue(String name, int queueId) {
        return new MessageQueue(prefix + name, options.get("broker"), queueId);
    }

    private Message message(String name, int number, int size) {
        byte[] body = new byte[size];
        random.nextBytes(body);
        Message message = new Message(prefix + name, "Tag" + number % 5,
            round + "-" + name + "-" + number + " all", body);
        message.setFlag(number);
        message.putUserProperty("number", String.valueOf(number));
        return message;
    }

    private static void report(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException("not sent: " + result);
        }
        Harness.emit("event", "sent", "topic", result.getMessageQueue().getTopic(), "queueId",
            result.getMessageQueue().getQueueId(), "queueOffset", result.getQueueOffset(),
            "msgId", result.getMsgId(), "offsetMsgId", result.getOffsetMsgId());
    }

    private void sendPlain(DefaultMQProducer producer, int count) throws Exception {
        for (int i = 0; i < count; i++) {
            // some of them long, and none long enough to be compressed
            report(producer.send(message("Plain", i, i % 7 == 0 ? 4000 : 200 + i % 400)));
        }
        Message odd = new Message(prefix + "Plain", "", "",
            "\u4f60\u597d \uD83D\uDE00".getBytes(StandardCharsets.UTF_8));
        odd.putUserProperty("\u540d", "\u5024 \uD83D\uDE80");
        report(producer.send(odd, queue("Plain", 3)));
    }

    private void sendBatches(DefaultMQProducer producer) throws Exception {
        for (int i = 0; i < 5; i++) {
            List<Message> batch = new ArrayList<>();
            List<Message> inner = new ArrayList<>();
            for (int j = 0; j < 10; j++) {
                batch.add(message("Plain", 10_000 + i * 10 + j, 100));
                inner.add(message("Inner", i * 10 + j, 100));
            }
            report(producer.send(batch, queue("Plain", i % 4)));
            report(producer.send(inner));
        }
    }

    private void sendCompressed() throws Exception {
        for (CompressionType type : CompressionType.values()) {
            DefaultMQProducer producer = new DefaultMQProducer(prefix + "_" + type);
            producer.setCompressType(type);
            start(producer);
            Message message = message("Plain", 20_000 + type.getValue(), 1);
            message.setBody(("the same words again and again " + type + ". ").repeat(400)
                .getBytes(StandardCharsets.UTF_8));
            report(producer.send(message, queue("Plain", 0)));
            producer.shutdown();
        }
    }

    private void sendOrdered(DefaultMQProducer producer) throws Exception {
        for (int i = 0; i < 20; i++) {
            Message message = message("Order", i, 50);
            message.putUserProperty(MessageConst.PROPERTY_SHARDING_KEY, "order-" + i / 5);
            report(producer.send(
                message, (queues, m, key) -> queues.get((Integer) key % queues.size()), i / 5));
        }
    }

    private void sendDelayed(DefaultMQProducer producer) throws Exception {
        long delivered = admin.maxOffset(queue("Delay", 0));
        for (int level : new int[] {1, 1, 17, 18, 99}) {
            Message message = message("Delay", level, 60);
            message.setDelayTimeLevel(level);
            report(producer.send(message));
        }
        await(queue("Delay", 0), delivered + 2);
    }

    private void sendTransactions() throws Exception {
        MessageQueue operations =
            new MessageQueue("RMQ_SYS_TRANS_OP_HALF_TOPIC", options.get("broker"), 0);
        long before = admin.maxOffset(operations);
        TransactionMQProducer producer = new TransactionMQProducer(prefix + "_tx");
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object state) {
                return (LocalTransactionState) state;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.UNKNOW;
            }
        });
        start(producer);
        for (LocalTransactionState state : LocalTransactionState.values()) {
            producer.sendMessageInTransaction(message("Tx", state.ordinal(), 70), state);
        }
        await(operations, before + 1);
        producer.shutdown();
    }

    /** Gives a message back for a retry, and another one that has had all of its retries. */
    private void sendBack() throws Exception {
        String group = prefix + "_group";
        MessageQueue retries = new MessageQueue("%RETRY%" + group, options.get("broker"), 0);
        for (int retriesMax : new int[] {16, 0}) {
            DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group);
            consumer.setNamesrvAddr(options.get("namesrv"));
            consumer.setInstanceName(group + retriesMax);
            consumer.setMaxReconsumeTimes(retriesMax);
            consumer.start();
            MessageExt message =
                consumer.pull(queue("Plain", 1), "*", 0, 1).getMsgFoundList().get(0);
            consumer.sendMessageBack(message, 1, options.get("broker"));
            consumer.shutdown();
        }
        await(retries, 1);
    }

    private void await(MessageQueue queue, long offset) throws Exception {
        long deadline = System.currentTimeMillis() + DEADLINE_MS;
        while (max(queue) < offset) {
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException(queue + " did not reach " + offset);
            }
            Thread.sleep(50);
        }
    }

    private long max(MessageQueue queue) {
        try {
            return admin.maxOffset(queue);
        } catch (Exception e) {
            return 0; // its topic is not there yet
        }
    }
}
