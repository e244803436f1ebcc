import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyRemotingClient;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Reads all that a broker has: every message of every queue, answers by key, committed offsets.
 *
 * <p>Options: namesrv, broker (its name), address; queues, keys and offsets name files of lines
 * "topic TAB queue", "topic TAB key TAB kind" (T: a tag) and "group TAB topic TAB queue". Records:
 * {@code queue} with its bounds, {@code message} as stored and, inflated, its body in base64, {@code key} with the log
 * offsets that the broker answers, {@code offset} of a group.
 */
@SuppressWarnings("deprecation")
final class StoreReader {
    private static final int TIMEOUT_MS = 10_000;
    private static final int QUERY_MAX = 64;

    private final Map<String, String> options;

    private StoreReader(Map<String, String> options) {
        this.options = options;
    }

    public static void main(String[] args) {
        Leashed.endWithParent();
        StoreReader program = new StoreReader(Harness.options(args));
        try {
            program.readQueues();
            program.askKeys();
            program.askOffsets();
        } catch (Exception e) {
            Harness.fail(e);
        }
        System.exit(0);
    }

    private List<String[]> lines(String option) throws Exception {
        List<String[]> lines = new ArrayList<>();
        if (options.containsKey(option)) {
            for (String line : Files.readAllLines(Path.of(options.get(option)))) {
                lines.add(line.split("\t", -1));
            }
        }
        return lines;
    }

    private DefaultMQPullConsumer consumer(String group, boolean inflate) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group);
        consumer.setNamesrvAddr(options.get("namesrv"));
        consumer.setInstanceName(group + inflate);
        consumer.setDecodeDecompressBody(inflate);
        consumer.start();
        return consumer;
    }

    // ---- queues ------------------------------------------------------------------------------

    private void readQueues() throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(options.get("namesrv"));
        admin.setInstanceName("store-reader");
        admin.start();
        DefaultMQPullConsumer inflating = consumer("store_reader", true);
        DefaultMQPullConsumer plain = consumer("store_reader", false);
        for (String[] line : lines("queues")) {
            MessageQueue queue =
                new MessageQueue(line[0], options.get("broker"), Integer.parseInt(line[1]));
            long min = admin.minOffset(queue);
            long max = admin.maxOffset(queue);
            Harness.emit("event", "queue", "topic", queue.getTopic(), "queueId",
                queue.getQueueId(), "min", min, "max", max);
            List<MessageExt> bodies = pullAll(inflating, queue, min, max);
            List<MessageExt> stored = pullAll(plain, queue, min, max);
            for (int i = 0; i < stored.size(); i++) {
                emit(stored.get(i), bodies.get(i));
            }
        }
    }

    private static List<MessageExt> pullAll(
        DefaultMQPullConsumer consumer, MessageQueue queue, long min, long max) throws Exception {
        List<MessageExt> found = new ArrayList<>();
        long offset = min;
        while (offset < max) {
            PullResult result = consumer.pull(queue, "*", offset, 32);
            if (result.getPullStatus() == PullStatus.FOUND) {
                found.addAll(result.getMsgFoundList());
            } else if (result.getNextBeginOffset() <= offset) {
                throw new IllegalStateException(queue + " at " + offset + ": " + result);
            }
            offset = result.getNextBeginOffset();
        }
        return found;
    }

    private static void emit(MessageExt stored, MessageExt inflated) {
        Map<String, String> properties = new TreeMap<>(stored.getProperties());
        properties.remove(MessageConst.PROPERTY_MIN_OFFSET);
        properties.remove(MessageConst.PROPERTY_MAX_OFFSET);
        String id = stored instanceof MessageClientExt
            ? ((MessageClientExt) stored).getOffsetMsgId() : null;
        Harness.emit(
            "event", "message",
            "topic", stored.getTopic(),
            "queueId", stored.getQueueId(),
            "queueOffset", stored.getQueueOffset(),
            "commitLogOffset", stored.getCommitLogOffset(),
            "storeSize", stored.getStoreSize(),
            "bodyCRC", stored.getBodyCRC(),
            "sysFlag", stored.getSysFlag(),
            "flag", stored.getFlag(),
            "bornTimestamp", stored.getBornTimestamp(),
            "bornHost", host(stored.getBornHost()),
            "storeTimestamp", stored.getStoreTimestamp(),
            "storeHost", host(stored.getStoreHost()),
            "reconsumeTimes", stored.getReconsumeTimes(),
            "preparedTransactionOffset", stored.getPreparedTransactionOffset(),
            "msgId", id,
            "properties", properties,
            "storedBodyLength", stored.getBody().length,
            "body", Base64.getEncoder().encodeToString(inflated.getBody()));
    }

    private static String host(SocketAddress address) {
        InetSocketAddress host = (InetSocketAddress) address;
        return host.getAddress().getHostAddress() + ":" + host.getPort();
    }

    // ---- keys and offsets --------------------------------------------------------------------

    private void askKeys() throws Exception {
        NettyRemotingClient client = new NettyRemotingClient(new NettyClientConfig());
        client.start();
        for (String[] line : lines("keys")) {
            HashMap<String, String> fields = new HashMap<>();
            fields.put("topic", line[0]);
            fields.put("key", line[1]);
            fields.put("maxNum", String.valueOf(QUERY_MAX));
            fields.put("beginTimestamp", "0");
            fields.put("endTimestamp", String.valueOf(Long.MAX_VALUE));
            if (!line[2].isEmpty()) {
                fields.put("indexType", line[2]);
            }
            RemotingCommand request =
                RemotingCommand.createRequestCommand(RequestCode.QUERY_MESSAGE, null);
            request.setExtFields(fields);
            RemotingCommand answer =
                client.invokeSync(options.get("address"), request, TIMEOUT_MS);
            List<Long> offsets = new ArrayList<>();
            if (answer.getBody() != null) {
                for (MessageExt message : MessageDecoder.decodes(ByteBuffer.wrap(answer.getBody()))) {
                    offsets.add(message.getCommitLogOffset());
                }
            }
            Harness.emit("event", "key", "topic", line[0], "key", line[1],
                "kind", line[2], "code", answer.getCode(), "offsets", offsets);
        }
        client.shutdown();
    }

    private void askOffsets() throws Exception {
        for (String[] line : lines("offsets")) {
            DefaultMQPullConsumer consumer = consumer(line[0], true);
            MessageQueue queue =
                new MessageQueue(line[1], options.get("broker"), Integer.parseInt(line[2]));
            Harness.emit("event", "offset", "group", line[0], "topic", line[1], "queueId",
                queue.getQueueId(), "offset", consumer.fetchConsumeOffset(queue, true));
            consumer.shutdown();
        }
    }
}
