import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * One client of the fairness benchmark, until its process is ended.
 *
 * <p>Options: kind (flood, consume or quiet), namesrv, topic, group, size; for a flood batch and
 * in_flight, for a quiet producer interval_ms. A flood sends asynchronous batches, a consumer is a
 * push consumer that only counts, and a quiet producer sends one message at a time and waits for
 * its answer. Records, twice a second: {@code count} with the messages so far and the requests that
 * failed; of a quiet producer {@code sent} after each send, with the time that it took.
 */
final class FairnessLoad {
    private final Map<String, String> options;
    private final AtomicLong count = new AtomicLong();
    private final AtomicLong failed = new AtomicLong();

    private FairnessLoad(Map<String, String> options) {
        this.options = options;
    }

    public static void main(String[] args) {
        Leashed.endWithParent();
        FairnessLoad load = new FairnessLoad(Harness.options(args));
        try {
            switch (load.options.get("kind")) {
                case "flood" -> load.flood();
                case "consume" -> load.consume();
                case "quiet" -> load.quiet();
                default -> throw new IllegalArgumentException(load.options.get("kind"));
            }
        } catch (Exception e) {
            Harness.fail(e);
        }
    }

    private int number(String option) {
        return Integer.parseInt(options.get(option));
    }

    private DefaultMQProducer producer() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(options.get("group"));
        producer.setNamesrvAddr(options.get("namesrv"));
        producer.start();
        return producer;
    }

    private byte[] body() {
        byte[] body = new byte[number("size")];
        Arrays.fill(body, (byte) 'x');
        return body;
    }

    private void report() {
        Thread thread = new Thread(() -> {
            while (true) {
                Harness.emit("event", "count", "at_ms", System.currentTimeMillis(),
                    "count", count.get(), "failed", failed.get());
                LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(500));
            }
        }, "report");
        thread.setDaemon(true);
        thread.start();
    }

    private void flood() throws Exception {
        DefaultMQProducer producer = producer();
        int batch = number("batch");
        byte[] body = body();
        String topic = options.get("topic");
        Semaphore permits = new Semaphore(number("in_flight"));
        report();
        while (true) {
            permits.acquire();
            List<Message> messages = new ArrayList<>(batch);
            for (int i = 0; i < batch; i++) {
                messages.add(new Message(topic, body));
            }
            try {
                producer.send(messages, new SendCallback() {
                    @Override
                    public void onSuccess(SendResult result) {
                        count.addAndGet(batch);
                        permits.release();
                    }

                    @Override
                    public void onException(Throwable cause) {
                        failed.incrementAndGet();
                        permits.release();
                    }
                });
            } catch (Exception e) {
                failed.incrementAndGet();
                permits.release();
            }
        }
    }

    private void consume() throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.get("group"));
        consumer.setNamesrvAddr(options.get("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.subscribe(options.get("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            count.addAndGet(messages.size());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        report();
        Thread.currentThread().join();
    }

    private void quiet() throws Exception {
        DefaultMQProducer producer = producer();
        byte[] body = body();
        long interval = TimeUnit.MILLISECONDS.toNanos(number("interval_ms"));
        long due = System.nanoTime();
        while (true) {
            boolean stored = true;
            long began = System.nanoTime();
            try {
                producer.send(new Message(options.get("topic"), body));
            } catch (Exception e) {
                stored = false;
            }
            long took = System.nanoTime() - began;
            Harness.emit("event", "sent", "at_ms", System.currentTimeMillis(),
                "ms", took / 1e6, "stored", stored);
            due = Math.max(due + interval, System.nanoTime());
            LockSupport.parkNanos(due - System.nanoTime());
        }
    }
}
