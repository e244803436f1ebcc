import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** The consumers of a {@link ClientDriver}, by name; every delivery gives a record. */
@SuppressWarnings("deprecation")
final class Consumers {
    private final Producers producers;
    private final Map<String, DefaultMQPushConsumer> pushed = new ConcurrentHashMap<>();
    private final Map<String, DefaultLitePullConsumer> polled = new ConcurrentHashMap<>();

    Consumers(Producers producers) {
        this.producers = producers;
    }

    /**
     * Starts a push consumer. Options: those of {@link Producers#configure}, group, topic, tags or
     * sql (a filter), listener (concurrent, orderly), model (CLUSTERING, BROADCASTING), fail_times
     * (deliveries of each message that fail), retries (attempts after the first one), reply (the
     * producer that sends a reply for each request), trace (report to the trace topic), by_broker
     * (brokers assign queues, and say whether to pop; only of releases 5.x).
     */
    void push(ClientDriver.Options options) throws Exception {
        String name = options.text("name");
        DefaultMQPushConsumer consumer =
            new DefaultMQPushConsumer(options.text("group"), options.has("trace"), null);
        Producers.configure(consumer, options);
        // Releases keep this type in different packages.
        var model = consumer.getMessageModel();
        consumer.setMessageModel(
            Enum.valueOf(model.getDeclaringClass(), options.text("model", "CLUSTERING")));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (options.has("retries")) {
            consumer.setMaxReconsumeTimes(options.number("retries"));
        }
        if (options.has("by_broker")) { // older releases do not have the method
            consumer.getClass().getMethod("setClientRebalance", boolean.class)
                .invoke(consumer, false);
        }
        if (options.has("sql")) {
            consumer.subscribe(options.text("topic"), MessageSelector.bySql(options.text("sql")));
        } else {
            consumer.subscribe(options.text("topic"), options.text("tags", "*"));
        }
        int failTimes = options.number("fail_times", 0);
        if (options.text("listener", "concurrent").equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                context.setSuspendCurrentQueueTimeMillis(200);
                return handle(options, messages, failTimes) ? ConsumeOrderlyStatus.SUCCESS
                    : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
                handle(options, messages, failTimes) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                    : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        }
        consumer.start();
        pushed.put(name, consumer);
    }

    private boolean handle(
        ClientDriver.Options options, Collection<MessageExt> messages, int failTimes) {
        boolean good = true;
        for (MessageExt message : messages) {
            report(options.text("name"), message);
            good &= message.getReconsumeTimes() >= failTimes;
            if (options.has("reply") && message.getProperty("CORRELATION_ID") != null) {
                reply(options.text("reply"), message);
            }
        }
        return good;
    }

    private void reply(String producer, MessageExt request) {
        try {
            byte[] body = ("reply to " + request.getKeys()).getBytes(StandardCharsets.UTF_8);
            Message reply = MessageUtil.createReplyMessage(request, body);
            producers.get(producer).send(reply, 3_000);
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }

    private static void report(String consumer, MessageExt message) {
        String body = new String(message.getBody(), StandardCharsets.UTF_8);
        Harness.emit("event", "got", "consumer", consumer, "topic", message.getTopic(),
            "queue", message.getQueueId(), "offset", message.getQueueOffset(),
            "keys", message.getKeys(), "tags", message.getTags(), "body", body.split(" ", 2)[0],
            "size", body.length(), "times", message.getReconsumeTimes(),
            "born", message.getBornTimestamp(), "at", System.currentTimeMillis(),
            "id", message.getMsgId(), "properties", message.getProperties());
    }

    /**
     * Starts a lite pull consumer. Options: those of {@link Producers#configure}, group, topic,
     * tags; with assign it takes all queues from their beginning, otherwise its share of the group.
     */
    void lite(ClientDriver.Options options) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(options.text("group"));
        Producers.configure(consumer, options);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        String topic = options.text("topic");
        if (options.has("assign")) {
            consumer.start();
            Collection<MessageQueue> queues = consumer.fetchMessageQueues(topic);
            consumer.assign(queues);
            for (MessageQueue queue : queues) {
                consumer.seek(queue, 0);
            }
        } else {
            consumer.subscribe(topic, options.text("tags", "*"));
            consumer.start();
        }
        polled.put(options.text("name"), consumer);
    }

    /** One poll, committed. Options: name, timeout_ms. Result: the number of messages. */
    int poll(ClientDriver.Options options) {
        DefaultLitePullConsumer consumer = polled.get(options.text("name"));
        List<MessageExt> messages = consumer.poll(options.number("timeout_ms"));
        for (MessageExt message : messages) {
            report(options.text("name"), message);
        }
        consumer.commitSync();
        return messages.size();
    }

    /** Reads all queues to their ends. Options: name, namesrv, group, topic, tags. */
    int pull(ClientDriver.Options options) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(options.text("group"));
        Producers.configure(consumer, options);
        consumer.start();
        int count = 0;
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(options.text("topic"))) {
            long offset = 0;
            PullResult result;
            do {
                result = consumer.pull(queue, options.text("tags", "*"), offset, 32);
                if (result.getPullStatus() == PullStatus.FOUND) {
                    for (MessageExt message : result.getMsgFoundList()) {
                        report(options.text("name"), message);
                        count++;
                    }
                }
                offset = result.getNextBeginOffset();
            } while (result.getPullStatus() != PullStatus.NO_NEW_MSG);
        }
        consumer.shutdown();
        return count;
    }

    void stop(String name) {
        DefaultMQPushConsumer push = pushed.remove(name);
        if (push != null) {
            push.shutdown();
        }
        DefaultLitePullConsumer lite = polled.remove(name);
        if (lite != null) {
            lite.shutdown();
        }
    }
}
