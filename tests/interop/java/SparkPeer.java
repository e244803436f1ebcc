import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * The other side of a Spark job: sends messages of many kinds, and shows all that a topic holds.
 *
 * <p>Options: namesrv, topic, group, mode. With {@code mode=send}: count messages to each of its
 * queues, one after the other in turn; every tenth has a large body, which the client compresses
 * with zlib, LZ4 or zstd. With {@code mode=receive}: a push consumer takes count messages, within
 * deadline_s; one record each, in the order of queues and offsets, with the queue that {@code
 * SelectMessageQueueByHash} picks for its sharding key.
 */
final class SparkPeer {
    private static final String LETTERS = "k\u00e4se \u732b \ud83d\ude80 =:|,";

    private final Map<String, String> options;
    private final String topic;
    private final int count;

    private SparkPeer(Map<String, String> options) {
        this.options = options;
        this.topic = options.get("topic");
        this.count = Integer.parseInt(options.get("count"));
    }

    public static void main(String[] args) {
        Leashed.endWithParent();
        SparkPeer peer = new SparkPeer(Harness.options(args));
        try {
            if (peer.options.get("mode").equals("send")) {
                peer.send();
            } else {
                peer.receive();
            }
        } catch (Exception e) {
            Harness.fail(e);
        }
        System.exit(0);
    }

    private DefaultMQProducer producer() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(options.get("group") + "_producer");
        producer.setNamesrvAddr(options.get("namesrv"));
        producer.start();
        return producer;
    }

    private void send() throws Exception {
        DefaultMQProducer producer = producer();
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(topic);
        CompressionType[] kinds = {CompressionType.ZLIB, CompressionType.LZ4, CompressionType.ZSTD};
        for (int i = 0; i < count * queues.size(); i++) {
            producer.setCompressType(kinds[i % kinds.length]);
            producer.send(message(i), queues.get(i % queues.size()));
        }
        producer.shutdown();
        Harness.emit("event", "sent", "queues", queues.size());
    }

    private Message message(int i) {
        byte[] body;
        if (i % 10 == 0) {
            body = (LETTERS.repeat(600) + i).getBytes(StandardCharsets.UTF_8);
        } else {
            body = new byte[i % 300 + 1];
            for (int at = 0; at < body.length; at++) {
                body[at] = (byte) (i + at);
            }
        }
        String tag = i % 3 == 0 ? null : i % 3 == 1 ? "TagA" : "TagB";
        Message message = new Message(topic, tag, "key-" + i + " other-" + i, body);
        message.putUserProperty("number", Integer.toString(i));
        message.putUserProperty("text", LETTERS + i);
        message.setFlag(i);
        return message;
    }

    private void receive() throws Exception {
        ConcurrentLinkedQueue<MessageExt> found = new ConcurrentLinkedQueue<>();
        CountDownLatch missing = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.get("group"));
        consumer.setNamesrvAddr(options.get("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                found.add(message);
                missing.countDown();
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        missing.await(Long.parseLong(options.get("deadline_s")), TimeUnit.SECONDS);
        consumer.shutdown();
        DefaultMQProducer producer = producer();
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(topic);
        producer.shutdown();
        List<MessageExt> sorted = new ArrayList<>(found);
        sorted.sort(Comparator.comparingInt(MessageExt::getQueueId)
            .thenComparingLong(MessageExt::getQueueOffset));
        for (MessageExt message : sorted) {
            show(message, queues);
        }
    }

    private static void show(MessageExt message, List<MessageQueue> queues) {
        String key = message.getProperty("__SHARDINGKEY");
        MessageQueue selected =
            key == null ? null : new SelectMessageQueueByHash().select(queues, message, key);
        Harness.emit(
            "event", "got",
            "queue", message.getQueueId(),
            "offset", message.getQueueOffset(),
            "id", message.getMsgId(),
            "tags", message.getTags(),
            "keys", message.getKeys(),
            "flag", message.getFlag(),
            "born", message.getBornTimestamp(),
            "stored", message.getStoreTimestamp(),
            "body", Base64.getEncoder().encodeToString(message.getBody()),
            "properties", message.getProperties(),
            "selected", selected == null ? null : selected.getQueueId());
    }
}
