import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.store.OffsetSerializeWrapper;
import org.apache.rocketmq.common.message.MessageQueue;

/** "write FILE": an offset file as broadcasting consumers keep it; "read FILE" prints the table. */
public final class OffsetFiles {
    public static void main(String[] args) throws Exception {
        Path file = Path.of(args[1]);
        if (args[0].equals("read")) {
            String text = Files.readString(file);
            OffsetSerializeWrapper read = OffsetSerializeWrapper.fromJson(text, OffsetSerializeWrapper.class);
            read.getOffsetTable().forEach((queue, offset) -> System.out.println(queue + " " + offset));
            return;
        }
        ConcurrentHashMap<MessageQueue, AtomicLong> table = new ConcurrentHashMap<>();
        table.put(new MessageQueue("TopicTest", "broker-a", 3), new AtomicLong(1470));
        table.put(new MessageQueue("TopicTest", "broker-b", 0), new AtomicLong(0));
        table.put(new MessageQueue("ns%Other", "broker\"q\"", 1), new AtomicLong(9_007_199_254_740_993L));
        OffsetSerializeWrapper wrapper = new OffsetSerializeWrapper();
        wrapper.setOffsetTable(table);
        Files.write(file, wrapper.toJson(true).getBytes(StandardCharsets.UTF_8));
    }
}
