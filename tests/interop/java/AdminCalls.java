import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.body.QueueTimeSpan;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Calls of the Java admin interface that no mqadmin command makes, each once.
 *
 * <p>Options: namesrv, broker (its address), topic, group (which consumes the topic), clone (a group
 * that gets the same offsets), requests (a topic of its own), half (the offset id of a half
 * message that the broker has given up). Each call gives a record with its name and what came back,
 * or with the cause of its failure. What is sent has the old header, as from clients before 3.5.
 */
@SuppressWarnings("deprecation")
final class AdminCalls {
    private static final String GIVEN_UP_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC";
    private static final long TIMEOUT_MS = 5_000;
    private static final long REQUEST_TIMEOUT_MS = 20_000;

    private AdminCalls() {
    }

    public static void main(String[] args) throws Exception {
        Map<String, String> options = Harness.options(args);
        System.setProperty("org.apache.rocketmq.client.sendSmartMsg", "false");
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(options.get("namesrv"));
        DefaultMQProducer producer = new DefaultMQProducer("admin_calls");
        producer.setNamesrvAddr(options.get("namesrv"));
        try {
            admin.start();
            producer.start();
            ask(options, admin, producer);
        } catch (Throwable e) {
            Harness.fail(e);
        }
        System.exit(0);
    }

    private static void ask(
        Map<String, String> options, DefaultMQAdminExt admin, DefaultMQProducer producer) {
        String topic = options.get("topic");
        String group = options.get("group");
        String broker = options.get("broker");
        MessageQueue first = new MessageQueue(topic, "broker-a", 0);
        MQClientAPIImpl api =
            producer.getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl();
        call("send", () -> {
            Message message = new Message(topic, "old", "old-key", new byte[] {1, 2, 3});
            return producer.send(message, first).getSendStatus().name();
        });
        call("request", () -> request(options, producer));
        call("earliestMsgStoreTime", () -> admin.earliestMsgStoreTime(first));
        call("queryConsumeTimeSpan", () -> spans(admin.queryConsumeTimeSpan(topic, group)));
        call("queryTopicsByConsumer", () ->
            new TreeSet<>(admin.queryTopicsByConsumer(group).getTopicList()));
        call("querySubscription", () -> admin.querySubscription(group, topic).getSubString());
        call("getConsumeStatus", () -> {
            Map<String, Map<String, Long>> shown = new TreeMap<>();
            admin.getConsumeStatus(topic, group, "").forEach((client, offsets) ->
                shown.put(client, byQueue(offsets)));
            return shown;
        });
        call("queryCorrectionOffset", () ->
            new TreeMap<>(api.queryCorrectionOffset(broker, topic, group, Set.of(), TIMEOUT_MS)));
        call("cloneGroupOffset", () -> {
            api.cloneGroupOffset(broker, group, options.get("clone"), topic, false, TIMEOUT_MS);
            return "done";
        });
        call("updateAndGetGroupReadForbidden", () ->
            admin.updateAndGetGroupReadForbidden(broker, group, topic, null).getReadable());
        call("examineSubscriptionGroupConfig", () ->
            admin.examineSubscriptionGroupConfig(broker, group).getRetryMaxTimes());
        call("getSubscriptionGroupConfig", () ->
            api.getSubscriptionGroupConfig(broker, group, TIMEOUT_MS).getRetryMaxTimes());
        call("resumeCheckHalfMessage", () ->
            admin.resumeCheckHalfMessage(GIVEN_UP_TOPIC, options.get("half")));
        call("getSystemTopicListFromBroker", () -> new TreeSet<>(
            api.getSystemTopicListFromBroker(broker, TIMEOUT_MS).getTopicList()));
        call("getSystemTopicList", () ->
            new TreeSet<>(api.getSystemTopicList(TIMEOUT_MS).getTopicList()));
        call("fetchTopicsByCLuster", () ->
            admin.fetchTopicsByCLuster("DefaultCluster").getTopicList().contains(topic));
        call("getKVListByNamespace", () ->
            admin.getKVListByNamespace("ORDER_TOPIC_CONFIG").getTable());
        call("getUnitTopicList", () ->
            api.getUnitTopicList(false, TIMEOUT_MS).getTopicList());
        call("getHasUnitSubTopicList", () ->
            api.getHasUnitSubTopicList(false, TIMEOUT_MS).getTopicList());
        call("getHasUnitSubUnUnitTopicList", () ->
            api.getHasUnitSubUnUnitTopicList(false, TIMEOUT_MS).getTopicList());
    }

    /** Asks and answers, both with old headers; the text that came back. */
    private static String request(Map<String, String> options, DefaultMQProducer producer)
        throws Exception {
        DefaultMQPushConsumer replier = new DefaultMQPushConsumer("admin_calls_repliers");
        replier.setNamesrvAddr(options.get("namesrv"));
        replier.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        replier.subscribe(options.get("requests"), "*");
        replier.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            try {
                byte[] body = "reply".getBytes(StandardCharsets.UTF_8);
                producer.send(MessageUtil.createReplyMessage(messages.get(0), body));
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        replier.start();
        Message question = new Message(options.get("requests"), new byte[] {1});
        Message reply = producer.request(question, REQUEST_TIMEOUT_MS);
        replier.shutdown();
        return new String(reply.getBody(), StandardCharsets.UTF_8);
    }

    private static void call(String name, Callable<Object> call) {
        try {
            Harness.emit("event", "answered", "call", name, "result", call.call());
        } catch (Exception e) {
            Harness.emit("event", "failed", "call", name, "cause", e.toString());
        }
    }

    private static Map<String, List<Long>> spans(List<QueueTimeSpan> spans) {
        Map<String, List<Long>> shown = new TreeMap<>();
        for (QueueTimeSpan span : spans) {
            shown.put(String.valueOf(span.getMessageQueue().getQueueId()), List.of(
                span.getMinTimeStamp(), span.getMaxTimeStamp(), span.getConsumeTimeStamp(),
                span.getDelayTime()));
        }
        return shown;
    }

    private static Map<String, Long> byQueue(Map<MessageQueue, Long> offsets) {
        Map<String, Long> shown = new TreeMap<>();
        offsets.forEach((queue, offset) -> shown.put(String.valueOf(queue.getQueueId()), offset));
        return shown;
    }
}
