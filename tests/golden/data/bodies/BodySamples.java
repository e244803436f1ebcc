import com.alibaba.fastjson.JSON;
import java.lang.reflect.Array;
import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.lang.reflect.ParameterizedType;
import java.lang.reflect.Type;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.Collection;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.DataVersion;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.admin.ConsumeStats;
import org.apache.rocketmq.remoting.protocol.admin.OffsetWrapper;
import org.apache.rocketmq.remoting.protocol.body.BrokerStatsItem;
import org.apache.rocketmq.remoting.protocol.body.ConsumeStatsList;
import org.apache.rocketmq.remoting.protocol.body.ConsumerConnection;
import org.apache.rocketmq.remoting.protocol.body.GetConsumerStatusBody;
import org.apache.rocketmq.remoting.protocol.body.KVTable;
import org.apache.rocketmq.remoting.protocol.body.RegisterBrokerBody;
import org.apache.rocketmq.remoting.protocol.body.TopicConfigAndMappingSerializeWrapper;
import org.apache.rocketmq.remoting.protocol.heartbeat.ConsumeType;
import org.apache.rocketmq.remoting.protocol.heartbeat.ConsumerData;
import org.apache.rocketmq.remoting.protocol.heartbeat.HeartbeatData;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.remoting.protocol.heartbeat.ProducerData;
import org.apache.rocketmq.remoting.protocol.heartbeat.SubscriptionData;
import org.apache.rocketmq.remoting.protocol.statictopic.TopicQueueMappingInfo;

/**
 * Prints java-5.5.0.jsonl: what the bean classes of rocketmq-remoting 5.5.0 write when every field is set
 * (fastjson2 2.0.59), and some texts of fastjson 1.2.83 with references. Time zone UTC.
 *
 * Class path: org.apache.rocketmq:rocketmq-remoting:5.5.0 with its dependencies.
 */
public class BodySamples {
    static final String BEANS = """
        common.CheckRocksdbCqWriteResult common.TopicConfig common.coldctr.AccAndTimeStamp
        common.message.MessageQueue common.message.MessageQueueAssignment
        common.message.MessageQueueForC DataVersion EpochEntry admin.ConsumeStats
        admin.OffsetWrapper admin.TopicOffset admin.TopicStatsTable body.AclInfo
        body.AclInfo$PolicyEntryInfo body.AclInfo$PolicyInfo body.BatchAck
        body.BatchAckMessageRequestBody body.BrokerMemberGroup body.BrokerReplicasInfo
        body.BrokerReplicasInfo$ReplicaIdentity body.BrokerReplicasInfo$ReplicasInfo
        body.BrokerStatsData body.BrokerStatsItem body.CheckClientRequestBody body.ClusterInfo
        body.Connection body.ConsumeMessageDirectlyResult body.ConsumeQueueData
        body.ConsumeStatsList body.ConsumeStatus body.ConsumerConnection
        body.ConsumerOffsetSerializeWrapper body.ConsumerRunningInfo body.CreateTopicListRequestBody
        body.ElectMasterResponseBody body.EpochEntryCache body.GetBrokerMemberGroupResponseBody
        body.GetConsumerStatusBody body.GroupList body.HARuntimeInfo
        body.HARuntimeInfo$HAClientRuntimeInfo body.HARuntimeInfo$HAConnectionRuntimeInfo
        body.KVTable body.LockBatchRequestBody body.LockBatchResponseBody
        body.MessageRequestModeSerializeWrapper body.PopProcessQueueInfo body.ProcessQueueInfo
        body.ProducerConnection body.ProducerInfo body.ProducerTableInfo
        body.QueryAssignmentRequestBody body.QueryAssignmentResponseBody
        body.QueryConsumeQueueResponseBody body.QueryConsumeTimeSpanBody
        body.QueryCorrectionOffsetBody body.QuerySubscriptionResponseBody body.QueueTimeSpan
        body.RegisterBrokerBody body.ResetOffsetBody body.ResetOffsetBodyForC
        body.SetMessageRequestModeRequestBody body.SubscriptionGroupList
        body.SubscriptionGroupWrapper body.SyncStateSet body.TopicConfigAndMappingSerializeWrapper
        body.TopicConfigSerializeWrapper body.TopicList body.UnlockBatchRequestBody body.UserInfo
        header.GetConsumerListByGroupResponseBody heartbeat.ConsumerData heartbeat.HeartbeatData
        heartbeat.ProducerData heartbeat.SubscriptionData route.BrokerData route.QueueData
        route.TopicRouteData statictopic.LogicQueueMappingItem
        statictopic.TopicConfigAndQueueMapping statictopic.TopicQueueMappingDetail
        statictopic.TopicQueueMappingInfo subscription.CustomizedRetryPolicy
        subscription.ExponentialRetryPolicy subscription.GroupForbidden
        subscription.GroupRetryPolicy subscription.SimpleSubscriptionData
        subscription.SubscriptionGroupConfig
        """;

    static Object sample(Type type) throws Exception {
        if (type == int.class || type == Integer.class) return 7;
        if (type == long.class || type == Long.class) return 9L;
        if (type == double.class) return 1.5;
        if (type == boolean.class || type == Boolean.class) return true;
        if (type == String.class) return "s";
        if (type == AtomicLong.class) return new AtomicLong(5);
        if (type == BitSet.class) return BitSet.valueOf(new byte[] {1, 2});
        if (type == Properties.class) {
            Properties properties = new Properties();
            properties.put("k", "v");
            return properties;
        }
        if (type instanceof ParameterizedType generic) {
            Class<?> raw = (Class<?>) generic.getRawType();
            Type[] of = generic.getActualTypeArguments();
            if (Map.class.isAssignableFrom(raw)) {
                Map<Object, Object> map = raw.isAssignableFrom(LinkedHashMap.class) ? new LinkedHashMap<>()
                    : raw.isAssignableFrom(ConcurrentHashMap.class) ? new ConcurrentHashMap<>()
                    : (Map<Object, Object>) raw.getDeclaredConstructor().newInstance();
                map.put(sample(of[0]), sample(of[1]));
                return map;
            }
            Collection<Object> items = raw.isAssignableFrom(ArrayList.class) ? new ArrayList<>()
                : raw.isAssignableFrom(LinkedHashSet.class) ? new LinkedHashSet<>()
                : (Collection<Object>) raw.getDeclaredConstructor().newInstance();
            items.add(sample(of[0]));
            return items;
        }
        Class<?> bean = (Class<?>) type;
        if (bean.isEnum()) return bean.getEnumConstants()[bean.getEnumConstants().length - 1];
        if (bean.isArray()) {
            Object array = Array.newInstance(bean.getComponentType(), 1);
            Array.set(array, 0, sample(bean.getComponentType()));
            return array;
        }
        return filled(bean);
    }

    static Object filled(Class<?> bean) throws Exception {
        Constructor<?> constructor = Arrays.stream(bean.getDeclaredConstructors())
            .filter(each -> !Arrays.asList(each.getParameterTypes()).contains(bean))
            .min((a, b) -> a.getParameterCount() - b.getParameterCount()).get();
        constructor.setAccessible(true);
        Object[] arguments = new Object[constructor.getParameterCount()];
        for (int i = 0; i < arguments.length; i++) arguments[i] = sample(constructor.getGenericParameterTypes()[i]);
        Object object = constructor.newInstance(arguments);
        for (Class<?> part = bean; part != Object.class; part = part.getSuperclass()) {
            for (Field field : part.getDeclaredFields()) {
                if (Modifier.isStatic(field.getModifiers()) || Modifier.isFinal(field.getModifiers())
                    && !Map.class.isAssignableFrom(field.getType()) && field.getType() != AtomicLong.class) continue;
                field.setAccessible(true);
                field.set(object, sample(field.getGenericType()));
            }
        }
        return object;
    }

    static void print(String kind, String name, String text) {
        Map<String, String> line = new LinkedHashMap<>();
        line.put("kind", kind);
        line.put("name", name);
        line.put("text", text);
        System.out.println(com.alibaba.fastjson2.JSON.toJSONString(line));
    }

    static String written(Object bean) {
        return new String(RemotingSerializable.encode(bean), StandardCharsets.UTF_8);
    }

    public static void main(String[] arguments) throws Exception {
        for (String name : BEANS.trim().split("\\s+")) {
            String folder = name.startsWith("common.") ? "" : "remoting.protocol.";
            Class<?> bean = Class.forName("org.apache.rocketmq." + folder + name);
            print("bean", bean.getSimpleName(), written(filled(bean)));
        }
        StringBuilder odd = new StringBuilder();
        for (char c = 0; c < 0x180; c++) odd.append(c);
        KVTable table = new KVTable();
        table.getTable().put("k", odd.append("\u2028\u4e2d\ud83d\ude00").toString());
        print("escapes", "KVTable", written(table));
        double[] numbers = {0, -0.0, 1, 1.5, 9999999, 1e7, 1.234567895E8, 9999999999.9, 1e10, 1e16, 1e22, 0.001, 9.99e-4,
            1e-7, 1.0 / 3, -2.5e-9, 1.7976931348623157e308, Double.NaN, Double.POSITIVE_INFINITY};
        for (double number : numbers) {
            BrokerStatsItem item = new BrokerStatsItem();
            item.setTps(number);
            print("double", Double.toString(number), written(item));
        }
        references();
        registration();
        fingerprint();
    }

    /** What 4.x and 5.0 to 5.3 write for an object that occurs twice. */
    static void references() {
        MessageQueue queue = new MessageQueue("T", "broker-a", 0);
        GetConsumerStatusBody status = new GetConsumerStatusBody();
        status.getConsumerTable().put("127.0.0.1@c", new HashMap<>(Map.of(queue, 3L)));
        status.getMessageQueueTable().put(queue, 5L);
        print("reference", "GetConsumerStatusBody", JSON.toJSONString(status));
        ConsumerConnection connection = new ConsumerConnection();
        SubscriptionData subscription = new SubscriptionData("%RETRY%g-a.b", "*");
        subscription.setSubVersion(1);
        connection.getSubscriptionTable().put("%RETRY%g-a.b", subscription);
        connection.getSubscriptionTable().put("x", subscription);
        print("reference", "ConsumerConnection", JSON.toJSONString(connection));
        ConsumeStats stats = new ConsumeStats();
        stats.getOffsetTable().put(queue, new OffsetWrapper());
        ConsumeStats same = new ConsumeStats();
        same.setOffsetTable(stats.getOffsetTable());
        ConsumeStatsList list = new ConsumeStatsList();
        list.getConsumeStatsList().add(new HashMap<>(Map.of("g-1", new ArrayList<>(List.of(stats)))));
        list.getConsumeStatsList().add(list.getConsumeStatsList().get(0));
        list.getConsumeStatsList().add(new HashMap<>(Map.of("h.x y\u4e2d", new ArrayList<>(List.of(same, same)))));
        print("reference", "ConsumeStatsList", JSON.toJSONString(list));
        DataVersion version = new DataVersion();
        version.setTimestamp(1700000000000L);
        TopicConfigAndMappingSerializeWrapper wrapper = new TopicConfigAndMappingSerializeWrapper();
        wrapper.setDataVersion(version);
        wrapper.setMappingDataVersion(version);
        print("reference", "TopicConfigAndMappingSerializeWrapper", JSON.toJSONString(wrapper));
    }

    static void registration() {
        DataVersion version = new DataVersion();
        version.setTimestamp(1700000000000L);
        version.getCounter().set(3);
        RegisterBrokerBody body = new RegisterBrokerBody();
        TopicConfigAndMappingSerializeWrapper wrapper = body.getTopicConfigSerializeWrapper();
        wrapper.setDataVersion(version);
        wrapper.setMappingDataVersion(version);
        TopicConfig topic = new TopicConfig("T", 4, 4, 6);
        topic.getAttributes().put("message.type", "NORMAL");
        wrapper.getTopicConfigTable().put("T", topic);
        wrapper.getTopicConfigTable().put("U", new TopicConfig("U", 8, 8, 7));
        TopicQueueMappingInfo mapping = new TopicQueueMappingInfo("S", 2, "broker-a", 5);
        mapping.getCurrIdMap().put(0, 1);
        wrapper.getTopicQueueMappingInfoMap().put("S", mapping);
        body.getFilterServerList().add("f1:1");
        print("registration", "plain", written(body));
        print("registration", "compressed", HexFormat.of().formatHex(body.encode(true)));
    }

    static void fingerprint() {
        SubscriptionData subscription = new SubscriptionData("T", "a || b");
        subscription.getTagsSet().addAll(Set.of("a", "b"));
        subscription.getCodeSet().addAll(Set.of(97, 98));
        ConsumerData consumer = new ConsumerData();
        consumer.setGroupName("cg");
        consumer.setConsumeType(ConsumeType.CONSUME_PASSIVELY);
        consumer.setMessageModel(MessageModel.CLUSTERING);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        consumer.getSubscriptionDataSet().add(subscription);
        ProducerData producer = new ProducerData();
        producer.setGroupName("pg");
        HeartbeatData heartbeat = new HeartbeatData();
        heartbeat.setClientID("ip@pid");
        heartbeat.getConsumerDataSet().add(consumer);
        heartbeat.getProducerDataSet().add(producer);
        heartbeat.setHeartbeatFingerprint(heartbeat.computeHeartbeatFingerprint());
        print("fingerprint", "HeartbeatData", written(heartbeat));
    }
}
