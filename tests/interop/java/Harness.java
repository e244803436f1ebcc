import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * What every program of the interoperability tests shares: options in, records out.
 *
 * <p>Options are arguments of the form {@code name=value}. Results are records: one JSON object
 * per line of standard output. Anything else that is printed, by us or by a library, goes to
 * standard error. The JSON is written here because the programs also run with the jars of older
 * releases, whose libraries differ.
 */
final class Harness {
    private static final PrintStream RECORDS =
        new PrintStream(System.out, true, StandardCharsets.UTF_8);

    static {
        System.setOut(System.err);
    }

    private Harness() {
    }

    static Map<String, String> options(String[] args) {
        Map<String, String> options = new LinkedHashMap<>();
        for (String arg : args) {
            int equals = arg.indexOf('=');
            options.put(arg.substring(0, equals), arg.substring(equals + 1));
        }
        return options;
    }

    /** Prints one record; keys and values alternate. */
    static void emit(Object... keysAndValues) {
        Map<Object, Object> record = new LinkedHashMap<>();
        for (int i = 0; i < keysAndValues.length; i += 2) {
            record.put(keysAndValues[i], keysAndValues[i + 1]);
        }
        StringBuilder line = new StringBuilder();
        write(line, record);
        RECORDS.println(line);
    }

    /** Ends the program with a record that names the cause. */
    static void fail(Throwable cause) {
        cause.printStackTrace();
        emit("event", "failed", "cause", cause.toString());
        System.exit(1);
    }

    private static void write(StringBuilder out, Object value) {
        if (value == null || value instanceof Number || value instanceof Boolean) {
            out.append(value);
        } else if (value instanceof Map<?, ?> map) {
            String separator = "{";
            for (Map.Entry<?, ?> entry : map.entrySet()) {
                out.append(separator);
                writeString(out, String.valueOf(entry.getKey()));
                out.append(':');
                write(out, entry.getValue());
                separator = ",";
            }
            out.append(map.isEmpty() ? "{}" : "}");
        } else if (value instanceof Collection<?> items) {
            String separator = "[";
            for (Object item : items) {
                out.append(separator);
                write(out, item);
                separator = ",";
            }
            out.append(items.isEmpty() ? "[]" : "]");
        } else {
            writeString(out, value.toString());
        }
    }

    private static void writeString(StringBuilder out, String text) {
        out.append('"');
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ' || c > '~') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        out.append('"');
    }
}
