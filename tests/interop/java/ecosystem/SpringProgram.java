import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.spring.annotation.RocketMQMessageListener;
import org.apache.rocketmq.spring.core.RocketMQListener;
import org.apache.rocketmq.spring.core.RocketMQTemplate;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Import;
import org.springframework.messaging.support.MessageBuilder;

/**
 * A program with the Spring Boot starter: sends, and listens with a tag.
 *
 * <p>Arguments are properties of Spring: {@code rocketmq.name-server}, {@code rocketmq.producer.group},
 * {@code topic}, {@code count}. It prints what came, one line each, and ends.
 */
@EnableAutoConfiguration
@Import(SpringProgram.Listener.class)
public class SpringProgram {
    private static final int TIMEOUT_S = 60;
    private static CountDownLatch left;

    /** Receives what the template sends. */
    @RocketMQMessageListener(topic = "${topic}", consumerGroup = "${topic}-listeners",
        selectorExpression = "TagA")
    public static class Listener implements RocketMQListener<String> {
        @Override
        public void onMessage(String text) {
            System.out.println("got " + text);
            left.countDown();
        }
    }

    public static void main(String[] args) {
        var context = SpringApplication.run(SpringProgram.class, args);
        try {
            work(context);
        } catch (Exception e) {
            e.printStackTrace();
            System.exit(1);
        }
        System.exit(SpringApplication.exit(context));
    }

    private static void work(ConfigurableApplicationContext context) throws Exception {
        var settings = context.getEnvironment();
        String topic = settings.getRequiredProperty("topic");
        int count = settings.getRequiredProperty("count", Integer.class);
        left = new CountDownLatch(count);
        RocketMQTemplate template = context.getBean(RocketMQTemplate.class);
        for (int i = 0; i < count; i++) {
            var message = MessageBuilder.withPayload("m-" + i).setHeader("KEYS", "k-" + i).build();
            System.out.println("sent " + template.syncSend(topic + ":TagA", message).getSendStatus());
            template.syncSend(topic + ":TagB", "other-" + i);
        }
        System.out.println(left.await(TIMEOUT_S, TimeUnit.SECONDS) ? "complete" : "incomplete");
    }
}
