import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Runs many mqadmin commands in one process.
 *
 * <p>Each line of standard input is one command, its words separated by tabs. Each gives one
 * record with what the command printed on both of its streams. A command that calls
 * {@code System.exit}, as mqadmin does for wrong usage, gives a record too, marked
 * {@code exited}; after it the process is gone.
 */
final class MqAdminDriver {
    private static final ByteArrayOutputStream PRINTED = new ByteArrayOutputStream();
    private static volatile boolean busy;

    private MqAdminDriver() {
    }

    /** Reaches the list of commands, which is open to subclasses only. */
    private static final class Commands extends MQAdminStartup {
        static void run(String[] words) {
            SUB_COMMANDS.clear();
            main0(words, null);
        }
    }

    public static void main(String[] args) throws Exception {
        Harness.emit("event", "ready");
        PrintStream capture = new PrintStream(PRINTED, true, StandardCharsets.UTF_8);
        System.setOut(capture);
        System.setErr(capture);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            if (busy) {
                report(true);
            }
        }));
        BufferedReader commands =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = commands.readLine()) != null) {
            run(line.split("\t"));
        }
        System.exit(0);
    }

    private static void run(String[] words) {
        // Commands and name server outlive a run, and would pass its options on to the next one.
        System.clearProperty(MixAll.NAMESRV_ADDR_PROPERTY);
        PRINTED.reset();
        busy = true;
        try {
            Commands.run(words);
        } catch (Throwable e) {
            e.printStackTrace();
        }
        busy = false;
        report(false);
    }

    private static void report(boolean exited) {
        String output = PRINTED.toString(StandardCharsets.UTF_8);
        Harness.emit("event", "done", "exited", exited, "output", output);
    }
}
