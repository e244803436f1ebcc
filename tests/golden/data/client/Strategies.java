import java.util.*;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.*;
import org.apache.rocketmq.common.message.MessageQueue;

/** Prints what every allocation strategy gives each member, one JSON line per case. */
public final class Strategies {
    static String room(String name) { int at = name.indexOf('@'); return at < 0 ? "r0" : name.substring(0, at); }

    public static void main(String[] args) {
        AllocateMachineRoomNearby.MachineRoomResolver resolver = new AllocateMachineRoomNearby.MachineRoomResolver() {
            public String brokerDeployIn(MessageQueue queue) { return room(queue.getBrokerName()); }
            public String consumerDeployIn(String clientId) { return clientId.substring(0, clientId.indexOf('-')); }
        };
        AllocateMessageQueueByMachineRoom byRoom = new AllocateMessageQueueByMachineRoom();
        byRoom.setConsumeridcs(new HashSet<>(Arrays.asList("r1", "r2")));
        List<AllocateMessageQueueStrategy> all = Arrays.asList(new AllocateMessageQueueAveragely(),
            new AllocateMessageQueueAveragelyByCircle(), byRoom, new AllocateMessageQueueConsistentHash(),
            new AllocateMachineRoomNearby(new AllocateMessageQueueAveragely(), resolver),
            new AllocateMachineRoomNearby(new AllocateMessageQueueConsistentHash(), resolver));
        Random random = new Random(17);
        for (int round = 0; round < 12; round++) {
            List<String> brokers = new ArrayList<>(Arrays.asList("r1@a", "r1@b", "r2@a", "r3@a", "plain"));
            Collections.shuffle(brokers, random);
            List<MessageQueue> queues = new ArrayList<>();
            int perBroker = 1 + random.nextInt(6);
            for (String broker : brokers.subList(0, 1 + random.nextInt(3)))
                for (int id = 0; id < perBroker; id++) queues.add(new MessageQueue("T", broker, id));
            Collections.sort(queues);
            List<String> members = new ArrayList<>();
            for (int i = 1 + random.nextInt(6); i > 0; i--) members.add("r" + (random.nextInt(3)) + "-10.0.0." + i + "@" + random.nextInt(100));
            Collections.sort(members);
            for (AllocateMessageQueueStrategy strategy : all) {
                StringBuilder line = new StringBuilder("{\"strategy\":\"" + strategy.getName() + "\",\"queues\":[");
                for (int i = 0; i < queues.size(); i++) line.append(i > 0 ? "," : "").append("[\"" + queues.get(i).getBrokerName() + "\"," + queues.get(i).getQueueId() + "]");
                line.append("],\"shares\":{");
                for (int i = 0; i < members.size(); i++) {
                    line.append(i > 0 ? "," : "").append("\"" + members.get(i) + "\":[");
                    List<MessageQueue> share = strategy.allocate("G", members.get(i), queues, members);
                    for (int k = 0; k < share.size(); k++) line.append(k > 0 ? "," : "").append(queues.indexOf(share.get(k)));
                    line.append("]");
                }
                System.out.println(line.append("}}"));
            }
        }
    }
}
