import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.Function;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.cloud.stream.function.StreamBridge;
import org.springframework.context.annotation.Bean;

/**
 * A program with the binder of Spring Cloud Stream: a bridge sends to one topic, a function carries
 * what comes there to another, a sink takes it.
 *
 * <p>Arguments are properties of Spring: the binder's name server, {@code count}, and a destination
 * and a group for each binding. It prints what came, one line each, and ends.
 */
@EnableAutoConfiguration
public class BinderProgram {
    private static final int TIMEOUT_S = 60;
    private static CountDownLatch left;

    @Bean
    public Function<String, String> upper() {
        return text -> text.toUpperCase(java.util.Locale.ROOT);
    }

    @Bean
    public Consumer<String> sink() {
        return text -> {
            System.out.println("got " + text);
            left.countDown();
        };
    }

    public static void main(String[] args) throws Exception {
        var context = SpringApplication.run(BinderProgram.class, args);
        int count = context.getEnvironment().getRequiredProperty("count", Integer.class);
        left = new CountDownLatch(count);
        StreamBridge bridge = context.getBean(StreamBridge.class);
        for (int i = 0; i < count; i++) {
            System.out.println("sent " + bridge.send("bridge-out-0", "m-" + i));
        }
        System.out.println(left.await(TIMEOUT_S, TimeUnit.SECONDS) ? "complete" : "incomplete");
        System.exit(SpringApplication.exit(context));
    }
}
