import java.util.List;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/** {@link ClientDriver} with what only releases 5.x have: messages for any time, and recall. */
final class ClientDriver5 extends ClientDriver {
    public static void main(String[] args) throws Exception {
        serve(args, new ClientDriver5());
    }

    @Override
    Object run(String command, Options options) throws Exception {
        switch (command) {
            case "send-timed":
                return sendTimed(options);
            case "recall":
                return producers.get(options.text("name"))
                    .recallMessage(options.text("topic"), options.text("handle"));
            default:
                return super.run(command, options);
        }
    }

    private Object sendTimed(Options options) throws Exception {
        Message message = Producers.message(options, options.number("first", 0));
        long delayMs = options.number("delay_ms");
        switch (options.text("how")) {
            case "seconds":
                message.setDelayTimeSec(delayMs / 1000);
                break;
            case "milliseconds":
                message.setDelayTimeMs(delayMs);
                break;
            default:
                message.setDeliverTimeMs(System.currentTimeMillis() + delayMs);
        }
        SendResult result = producers.get(options.text("name")).send(message);
        return List.of(result.getSendStatus().name(), String.valueOf(result.getRecallHandle()));
    }
}
