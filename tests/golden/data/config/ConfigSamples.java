import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.broker.filter.ConsumerFilterManager;
import org.apache.rocketmq.broker.loadbalance.MessageRequestModeManager;
import org.apache.rocketmq.broker.offset.ConsumerOffsetManager;
import org.apache.rocketmq.broker.offset.LmqConsumerOffsetManager;
import org.apache.rocketmq.broker.pop.orderly.QueueLevelConsumerManager;
import org.apache.rocketmq.broker.pop.orderly.QueueLevelConsumerManager.OrderInfo;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.TopicFilterType;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.remoting.protocol.DataVersion;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.body.SetMessageRequestModeRequestBody;
import org.apache.rocketmq.remoting.protocol.body.SubscriptionGroupWrapper;
import org.apache.rocketmq.remoting.protocol.body.TopicConfigSerializeWrapper;
import org.apache.rocketmq.remoting.protocol.body.TopicQueueMappingSerializeWrapper;
import org.apache.rocketmq.remoting.protocol.statictopic.LogicQueueMappingItem;
import org.apache.rocketmq.remoting.protocol.statictopic.TopicQueueMappingDetail;
import org.apache.rocketmq.remoting.protocol.subscription.CustomizedRetryPolicy;
import org.apache.rocketmq.remoting.protocol.subscription.ExponentialRetryPolicy;
import org.apache.rocketmq.remoting.protocol.subscription.GroupRetryPolicy;
import org.apache.rocketmq.remoting.protocol.subscription.GroupRetryPolicyType;
import org.apache.rocketmq.remoting.protocol.subscription.SimpleSubscriptionData;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.store.timer.TimerMetrics;

/**
 * Writes the files of "java-5.5.0": configuration files as the classes of rocketmq-broker 5.5.0
 * write them (fastjson2 2.0.59), with the members that the golden stores leave empty.
 *
 * <p>Argument: the folder. Class path: org.apache.rocketmq:rocketmq-broker:5.5.0 with its
 * dependencies.
 */
public class ConfigSamples {
    static final String ODD = "odd \"\\\t\u0001\u007f\u00e9\u4e2d\u2028\ud83d\ude00/<>";
    static Path folder;

    public static void main(String[] args) throws Exception {
        folder = Path.of(args[0]);
        topics();
        groups();
        offsets();
        order();
        mappings();
        modes();
        filters();
        timer();
        System.exit(0);
    }

    static void save(String name, String text) throws IOException {
        Files.writeString(folder.resolve(name), text, StandardCharsets.UTF_8);
    }

    static DataVersion version() {
        DataVersion version = new DataVersion();
        version.setTimestamp(1700000000000L);
        version.setStateVersion(3);
        version.getCounter().set(7);
        return version;
    }

    static void topics() throws IOException {
        TopicConfig topic = new TopicConfig("T", 8, 4, 6, 3);
        topic.setOrder(true);
        topic.setTopicFilterType(TopicFilterType.MULTI_TAG);
        topic.getAttributes().put("message.type", "FIFO");
        topic.getAttributes().put("queue.type", "BatchCQ");
        TopicConfigSerializeWrapper wrapper = new TopicConfigSerializeWrapper();
        wrapper.setDataVersion(version());
        wrapper.getTopicConfigTable().put("T", topic);
        wrapper.getTopicConfigTable().put(ODD, new TopicConfig(ODD));
        save("topics.json", wrapper.toJson(true));
    }

    static void groups() throws IOException {
        SubscriptionGroupConfig exponential = new SubscriptionGroupConfig();
        exponential.setGroupName("exponential");
        GroupRetryPolicy policy = new GroupRetryPolicy();
        policy.setType(GroupRetryPolicyType.EXPONENTIAL);
        policy.setExponentialRetryPolicy(new ExponentialRetryPolicy(1000, 60000, 3));
        exponential.setGroupRetryPolicy(policy);
        exponential.setSubscriptionDataSet(Set.of(new SimpleSubscriptionData("T", "TAG", "a || b", 5)));
        exponential.getAttributes().put("k", "v");
        SubscriptionGroupConfig customized = new SubscriptionGroupConfig();
        customized.setGroupName("customized");
        GroupRetryPolicy delays = new GroupRetryPolicy();
        delays.setCustomizedRetryPolicy(new CustomizedRetryPolicy(new long[] {1000, 5000}));
        customized.setGroupRetryPolicy(delays);
        SubscriptionGroupWrapper wrapper = new SubscriptionGroupWrapper();
        wrapper.setDataVersion(version());
        wrapper.getSubscriptionGroupTable().put("exponential", exponential);
        wrapper.getSubscriptionGroupTable().put("customized", customized);
        wrapper.getForbiddenTable().put("exponential", new ConcurrentHashMap<>(Map.of("T", 3)));
        save("subscriptionGroup.json", wrapper.toJson(true));
    }

    static void offsets() throws IOException {
        ConsumerOffsetManager manager = new ConsumerOffsetManager();
        manager.setDataVersion(version());
        manager.getOffsetTable().put("T@" + ODD, new ConcurrentHashMap<>(Map.of(0, 12L, 10, 1L << 40)));
        manager.getOffsetTable().put("empty@g", new ConcurrentHashMap<>());
        save("consumerOffset.json", manager.encode(true));
        LmqConsumerOffsetManager lmq = new LmqConsumerOffsetManager();
        lmq.setDataVersion(version());
        lmq.getLmqOffsetTable().put("%LMQ%x@G", 5L);
        save("lmqConsumerOffset.json", lmq.encode(true));
    }

    static void order() throws IOException {
        OrderInfo full = new OrderInfo("attempt", 1700000000000L, 60000, List.of(5L, 6L, 8L), 1700000000001L, 2);
        full.setOffsetNextVisibleTime(new TreeMap<>(Map.of(5L, 1700000060000L)));
        full.setOffsetConsumedCount(new TreeMap<>(Map.of(5L, 2, 6L, 1)));
        OrderInfo bare = new OrderInfo(null, 1, 2, List.of(9L), 3, 0);
        QueueLevelConsumerManager manager = new QueueLevelConsumerManager();
        manager.setTable(new ConcurrentHashMap<>(Map.of("T@G", new ConcurrentHashMap<>(Map.of(0, full, 3, bare)))));
        save("consumerOrderInfo.json", RemotingSerializable.toJson(manager, true));
    }

    static void mappings() throws IOException {
        TopicQueueMappingDetail detail = new TopicQueueMappingDetail("S", 2, "broker-a", 9);
        detail.getHostedQueues().put(0, List.of(
            new LogicQueueMappingItem(0, 1, "broker-b", 0, 0, 100, 1, 2),
            new LogicQueueMappingItem(1, 0, "broker-a", 100, 0, -1, -1, -1)));
        detail.getHostedQueues().put(1, List.of());
        detail.setCurrIdMap(new ConcurrentHashMap<>(Map.of(0, 0)));
        TopicQueueMappingSerializeWrapper wrapper = new TopicQueueMappingSerializeWrapper();
        wrapper.setDataVersion(version());
        wrapper.setTopicQueueMappingInfoMap(new ConcurrentHashMap<>(Map.of("S", detail)));
        save("topicQueueMapping.json", wrapper.toJson(true));
    }

    static void modes() throws IOException {
        SetMessageRequestModeRequestBody body = new SetMessageRequestModeRequestBody();
        body.setTopic("T");
        body.setConsumerGroup("G");
        body.setMode(MessageRequestMode.POP);
        body.setPopShareQueueNum(3);
        MessageRequestModeManager manager = new MessageRequestModeManager();
        manager.setMessageRequestMode("T", "G", body);
        save("messageRequestMode.json", manager.encode(true));
    }

    static void filters() throws IOException {
        ConsumerFilterManager manager = new ConsumerFilterManager();
        manager.register("T", "G", "a > 1 AND b = 'x'", "SQL92", 17);
        String text = manager.encode(true);
        save("consumerFilter.json", text.replaceAll("\"bornTime\":[0-9]+", "\"bornTime\":1700000000000"));
    }

    static void timer() throws IOException {
        TimerMetrics metrics = new TimerMetrics(folder.resolve("timermetrics").toString());
        TimerMetrics.Metric metric = metrics.getTopicPair(ODD);
        metric.getCount().set(-2);
        metric.setTimeStamp(1700000000000L);
        metrics.getDataVersion().assignNewOne(version());
        metrics.persist();
    }
}
