import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.camel.builder.RouteBuilder;
import org.apache.camel.impl.DefaultCamelContext;

/**
 * A program with Camel: one route carries what comes to a topic to another, one prints what comes
 * there.
 *
 * <p>Arguments: name server, the two topics, the number of messages. It prints what came, one line
 * each, and ends.
 */
public final class CamelProgram {
    private static final int TIMEOUT_S = 60;

    private CamelProgram() {
    }

    public static void main(String[] args) throws Exception {
        String address = "?namesrvAddr=" + args[0];
        String first = args[1];
        String second = args[2];
        int count = Integer.parseInt(args[3]);
        CountDownLatch left = new CountDownLatch(count);
        DefaultCamelContext context = new DefaultCamelContext();
        context.addRoutes(new RouteBuilder() {
            @Override
            public void configure() {
                from("rocketmq:" + first + address + "&consumerGroup=camel-first")
                    .convertBodyTo(String.class)
                    .transform(simple("${body}!"))
                    .to("rocketmq:" + second + address + "&producerGroup=camel-second");
                from("rocketmq:" + second + address + "&consumerGroup=camel-last")
                    .convertBodyTo(String.class)
                    .process(exchange -> {
                        System.out.println("got " + exchange.getMessage().getBody(String.class));
                        left.countDown();
                    });
            }
        });
        context.start();
        try (var template = context.createProducerTemplate()) {
            for (int i = 0; i < count; i++) {
                template.sendBody("rocketmq:" + first + address + "&producerGroup=camel-start", "m-" + i);
            }
        }
        System.out.println(left.await(TIMEOUT_S, TimeUnit.SECONDS) ? "complete" : "incomplete");
        context.stop();
        System.exit(0);
    }
}
