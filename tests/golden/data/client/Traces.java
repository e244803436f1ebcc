import java.util.*;
import org.apache.rocketmq.client.AccessChannel;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.trace.*;
import org.apache.rocketmq.common.message.MessageType;

/** Prints the trace data of one context of each kind, keys behind it, as JSON strings. */
public final class Traces {
    static TraceBean bean(String id, String tags, String keys) {
        TraceBean bean = new TraceBean();
        bean.setTopic("TopicA"); bean.setMsgId(id); bean.setTags(tags); bean.setKeys(keys);
        bean.setStoreHost("127.0.0.1:10911"); bean.setClientHost("10.0.0.9"); bean.setBodyLength(26);
        bean.setMsgType(MessageType.Normal_Msg); bean.setOffsetMsgId("7F00000100002A9F0000000000000000");
        bean.setRetryTimes(2); bean.setTransactionId("tx-1");
        bean.setTransactionState(LocalTransactionState.COMMIT_MESSAGE); bean.setFromTransactionCheck(true);
        return bean;
    }

    static void show(String name, TraceType type, AccessChannel channel, TraceBean... beans) {
        TraceContext context = new TraceContext();
        context.setTraceType(type); context.setTimeStamp(1700000000123L); context.setRegionId("DefaultRegion");
        context.setGroupName("GroupA"); context.setCostTime(7); context.setSuccess(true);
        context.setRequestId("0A00000130391234567800000000000A"); context.setContextCode(3);
        context.setAccessChannel(channel); context.setTraceBeans(new ArrayList<>(Arrays.asList(beans)));
        TraceTransferBean encoded = TraceDataEncoder.encoderFromContextBean(context);
        System.out.println("{\"name\":" + q(name) + ",\"data\":" + q(encoded.getTransData()) + ",\"keys\":" + q(String.join(" ", new TreeSet<>(encoded.getTransKey()))) + "}");
    }

    static String q(String text) { return "\"" + text.replace("\u0001", "\\u0001").replace("\u0002", "\\u0002") + "\""; }

    public static void main(String[] args) {
        show("pub", TraceType.Pub, AccessChannel.LOCAL, bean("0A000001303912345678000000000001", "TagA", "k1 k2"));
        TraceBean half = bean("0A000001303912345678000000000002", null, null); half.setMsgType(MessageType.Trans_Msg_Half);
        show("pub without tag", TraceType.Pub, AccessChannel.LOCAL, half);
        show("before", TraceType.SubBefore, AccessChannel.LOCAL, bean("0A000001303912345678000000000003", "TagA", "k1"), bean("0A000001303912345678000000000004", null, null));
        show("after", TraceType.SubAfter, AccessChannel.LOCAL, bean("0A000001303912345678000000000003", "TagA", "k1"), bean("0A000001303912345678000000000004", null, null));
        show("after in the cloud", TraceType.SubAfter, AccessChannel.CLOUD, bean("0A000001303912345678000000000003", "TagA", "k1"));
        TraceBean end = bean("0A000001303912345678000000000005", "TagA", "k1"); end.setMsgType(MessageType.Trans_msg_Commit);
        show("end", TraceType.EndTransaction, AccessChannel.LOCAL, end);
        show("recall", TraceType.Recall, AccessChannel.LOCAL, bean("0A000001303912345678000000000006", "TagA", "k1"));
    }
}
