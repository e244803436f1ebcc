import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * How Java's client shares queues: one record for each strategy, number of queues and of members.
 *
 * <p>Options: queues and members, the largest numbers. Queues are of topic {@code T} on brokers
 * {@code broker-a} (even ids) and {@code broker-b}; the members are {@code 10.0.0.N@N}. Each record
 * has {@code strategy}, {@code queues}, {@code members} and {@code shares}: for each member the
 * indexes of its queues.
 */
final class Allocations {
    private Allocations() {
    }

    public static void main(String[] args) {
        var options = Harness.options(args);
        for (int queues = 1; queues <= Integer.parseInt(options.get("queues")); queues++) {
            for (int members = 1; members <= Integer.parseInt(options.get("members")); members++) {
                List<MessageQueue> named = queues(queues, "");
                share(new AllocateMessageQueueAveragely(), named, members);
                share(new AllocateMessageQueueAveragelyByCircle(), named, members);
                share(new AllocateMessageQueueConsistentHash(), named, members);
                AllocateMessageQueueByMachineRoom rooms = new AllocateMessageQueueByMachineRoom();
                Set<String> idcs = new HashSet<>(Arrays.asList("room1", "room2"));
                rooms.setConsumeridcs(idcs);
                share(rooms, queues(queues, "room1@"), members);
            }
        }
    }

    private static List<MessageQueue> queues(int count, String room) {
        List<MessageQueue> made = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            made.add(new MessageQueue("T", room + (i % 2 == 0 ? "broker-a" : "broker-b"), i));
        }
        return made;
    }

    private static void share(
        AllocateMessageQueueStrategy strategy, List<MessageQueue> queues, int members) {
        List<String> ids = new ArrayList<>();
        for (int i = 1; i <= members; i++) {
            ids.add("10.0.0." + i + "@" + i);
        }
        List<List<Integer>> shares = new ArrayList<>();
        for (String id : ids) {
            List<Integer> mine = new ArrayList<>();
            for (MessageQueue queue : strategy.allocate("G", id, queues, ids)) {
                mine.add(queues.indexOf(queue));
            }
            shares.add(mine);
        }
        Harness.emit("event", "shared", "strategy", strategy.getName(), "queues", queues.size(),
            "members", members, "shares", shares);
    }
}
