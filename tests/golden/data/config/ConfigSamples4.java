import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.DataVersion;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.protocol.body.ConsumerOffsetSerializeWrapper;
import org.apache.rocketmq.common.protocol.body.SubscriptionGroupWrapper;
import org.apache.rocketmq.common.protocol.body.TopicConfigSerializeWrapper;
import org.apache.rocketmq.common.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/**
 * Writes the files of "java-4.9.8": configuration files as the beans of RocketMQ 4.9.8 are written
 * by its own serializer (fastjson 1.2).
 *
 * <p>Argument: the folder. Class path: org.apache.rocketmq:rocketmq-client:4.9.8 with its
 * dependencies.
 */
public class ConfigSamples4 {
    public static void main(String[] args) throws IOException {
        Path folder = Path.of(args[0]);
        DataVersion version = new DataVersion();
        version.setTimestamp(1600000000000L);
        version.getCounter().set(5);

        TopicConfigSerializeWrapper topics = new TopicConfigSerializeWrapper();
        topics.setDataVersion(version);
        topics.getTopicConfigTable().put("T", new TopicConfig("T", 4, 4, 6));
        save(folder, "topics.json", topics);

        SubscriptionGroupConfig group = new SubscriptionGroupConfig();
        group.setGroupName("G");
        group.setRetryMaxTimes(3);
        SubscriptionGroupWrapper groups = new SubscriptionGroupWrapper();
        groups.setDataVersion(version);
        groups.getSubscriptionGroupTable().put("G", group);
        save(folder, "subscriptionGroup.json", groups);

        ConsumerOffsetSerializeWrapper offsets = new ConsumerOffsetSerializeWrapper();
        offsets.getOffsetTable().put("T@G", new ConcurrentHashMap<>(Map.of(0, 250L, 1, 251L)));
        offsets.getOffsetTable().put("%RETRY%G@G", new ConcurrentHashMap<>(Map.of(0, 0L)));
        offsets.getOffsetTable().put("empty@G", new ConcurrentHashMap<>());
        save(folder, "consumerOffset.json", offsets);

        save(folder, "delayOffset.json", Map.of("offsetTable", new TreeMap<>(Map.of(1, 10L, 3, 7L))));
    }

    static void save(Path folder, String name, Object table) throws IOException {
        String text = RemotingSerializable.toJson(table, true);
        Files.write(folder.resolve(name), text.getBytes(StandardCharsets.UTF_8));
    }
}
