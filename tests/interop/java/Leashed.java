import java.io.IOException;
import java.io.InputStream;
import java.lang.reflect.InvocationTargetException;
import java.util.Arrays;

/**
 * Runs another main class, named by the first argument, in a process that ends when its parent
 * does. The Apache servers run under this, so that a killed test run leaves none behind.
 */
final class Leashed {
    private Leashed() {
    }

    public static void main(String[] args) throws Throwable {
        endWithParent();
        String[] rest = Arrays.copyOfRange(args, 1, args.length);
        try {
            Class.forName(args[0]).getMethod("main", String[].class).invoke(null, (Object) rest);
        } catch (InvocationTargetException e) {
            throw e.getCause();
        }
    }

    /**
     * Halts this process when standard input ends, that is, when whoever started it has ended.
     * Not for programs that read commands: those see the end themselves.
     */
    static void endWithParent() {
        InputStream input = System.in;
        Thread watch = new Thread(() -> {
            try {
                while (input.read() >= 0) {
                    continue;
                }
            } catch (IOException e) {
                // as good as the end
            }
            Runtime.getRuntime().halt(3);
        }, "end-with-parent");
        watch.setDaemon(true);
        watch.start();
    }
}
