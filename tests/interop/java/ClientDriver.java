import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Map;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * The real client, told line by line what to do: many producers and consumers in one process.
 *
 * <p>Option: serialize ({@code JSON} or {@code ROCKETMQ}), how headers are written. Each line of
 * standard input is one command: its name and options {@code name=value}, separated by tabs. Each
 * gives one record, {@code done} with {@code result}, or {@code failed} with {@code cause}. What
 * happens by itself gives records in between: {@code got} for each delivery, {@code sent} for each
 * acknowledged message of a sender in the background, {@code checked} for each question about a
 * transaction. Uses only what releases 4.9 and 5.x have in common; see {@link ClientDriver5}.
 */
class ClientDriver {
    final Producers producers = new Producers();
    final Consumers consumers = new Consumers(producers);

    public static void main(String[] args) throws Exception {
        serve(args, new ClientDriver());
    }

    /** Serves commands until standard input ends. */
    static void serve(String[] args, ClientDriver driver) throws Exception {
        Map<String, String> options = Harness.options(args);
        // Read by the client when its first class is loaded.
        System.setProperty("rocketmq.serialize.type", options.getOrDefault("serialize", "JSON"));
        Harness.emit("event", "ready");
        BufferedReader commands =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = commands.readLine()) != null) {
            String[] words = line.split("\t");
            try {
                String[] rest = Arrays.copyOfRange(words, 1, words.length);
                Object result = driver.run(words[0], new Options(Harness.options(rest)));
                Harness.emit("event", "done", "result", result);
            } catch (Throwable e) {
                e.printStackTrace();
                Harness.emit("event", "failed", "cause", e.toString());
            }
        }
        Runtime.getRuntime().halt(0); // without the goodbyes of the clients that still run
    }

    /** Carries out one command; its result is what {@link Harness} can write. */
    Object run(String command, Options options) throws Exception {
        switch (command) {
            case "producer":
                producers.start(options);
                return null;
            case "send":
                return producers.send(options);
            case "transaction":
                return producers.sendInTransaction(options);
            case "request":
                return producers.request(options);
            case "keep-sending":
                producers.keepSending(options);
                return null;
            case "stop-sending":
                return producers.stopSending(options);
            case "push":
                consumers.push(options);
                return null;
            case "lite":
                consumers.lite(options);
                return null;
            case "poll":
                return consumers.poll(options);
            case "pull":
                return consumers.pull(options);
            case "stop":
                stop(options.text("name"));
                return null;
            case "stop-soon": // a client of 5.x takes three seconds
                new Thread(() -> stop(options.text("name")), "stop-soon").start();
                return null;
            case "serialize-type":
                return RemotingCommand.getSerializeTypeConfigInThisServer().name();
            default:
                throw new IllegalArgumentException("no such command: " + command);
        }
    }

    private void stop(String name) {
        producers.stop(name);
        consumers.stop(name);
    }

    /** The options of a command, with defaults. */
    static final class Options {
        private final Map<String, String> given;

        Options(Map<String, String> given) {
            this.given = given;
        }

        String text(String name) {
            String value = given.get(name);
            if (value == null) {
                throw new IllegalArgumentException("no option " + name);
            }
            return value;
        }

        String text(String name, String otherwise) {
            return given.getOrDefault(name, otherwise);
        }

        int number(String name) {
            return Integer.parseInt(text(name));
        }

        int number(String name, int otherwise) {
            return given.containsKey(name) ? number(name) : otherwise;
        }

        boolean has(String name) {
            return given.containsKey(name);
        }
    }
}
