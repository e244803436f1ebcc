import java.nio.ByteBuffer;
import java.time.Instant;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * One client of the benchmark at everyday rates, until its process is ended.
 *
 * <p>Options: kind (produce or consume), namesrv, topic, group; for a producer rate (messages per
 * second) and size. A producer sends asynchronously, each message at its time, but has no more than
 * {@link #IN_FLIGHT_MAX} under way: the client gives up messages that wait in its queue for long. A
 * producer that is late sends without a pause until it has caught up. A time is measured from the moment at which a
 * message was due: to its acknowledgement by the producer, to its handler by the consumer. Records,
 * twice a second: {@code times} with the messages so far, the sends that failed, and how many times
 * of this half second fell into which bucket; bucket n begins at 1.02^n microseconds.
 */
final class RatesLoad {
    private static final int IN_FLIGHT_MAX = 4_096;
    private static final int BUCKETS = 1_200;
    private static final double LOG_STEP = Math.log(1.02);

    private final Map<String, String> options;
    private final AtomicLong count = new AtomicLong();
    private final AtomicLong failed = new AtomicLong();
    private final AtomicLongArray buckets = new AtomicLongArray(BUCKETS);
    private final Semaphore permits = new Semaphore(IN_FLIGHT_MAX);

    private RatesLoad(Map<String, String> options) {
        this.options = options;
    }

    public static void main(String[] args) {
        Leashed.endWithParent();
        RatesLoad load = new RatesLoad(Harness.options(args));
        try {
            switch (load.options.get("kind")) {
                case "produce" -> load.produce();
                case "consume" -> load.consume();
                default -> throw new IllegalArgumentException(load.options.get("kind"));
            }
        } catch (Exception e) {
            Harness.fail(e);
        }
    }

    private static long nowMicros() {
        Instant now = Instant.now();
        return now.getEpochSecond() * 1_000_000 + now.getNano() / 1_000;
    }

    private void took(long micros) {
        double bucket = Math.log(Math.max(micros, 1)) / LOG_STEP;
        buckets.incrementAndGet(Math.min((int) bucket, BUCKETS - 1));
        count.incrementAndGet();
    }

    private void report() {
        Thread thread = new Thread(() -> {
            while (true) {
                Map<Integer, Long> found = new TreeMap<>();
                for (int i = 0; i < BUCKETS; i++) {
                    long times = buckets.getAndSet(i, 0);
                    if (times > 0) {
                        found.put(i, times);
                    }
                }
                Harness.emit("event", "times", "at_ms", System.currentTimeMillis(),
                    "count", count.get(), "failed", failed.get(), "buckets", found);
                LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(500));
            }
        }, "report");
        thread.setDaemon(true);
        thread.start();
    }

    private void produce() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(options.get("group"));
        producer.setNamesrvAddr(options.get("namesrv"));
        producer.start();
        report();
        int size = Integer.parseInt(options.get("size"));
        double interval = 1e6 / Double.parseDouble(options.get("rate"));
        long began = nowMicros();
        for (long number = 0; ; number++) {
            long due = began + (long) (number * interval);
            for (long now = nowMicros(); now < due; now = nowMicros()) {
                LockSupport.parkNanos((due - now) * 1_000);
            }
            permits.acquire();
            byte[] body = new byte[size];
            ByteBuffer.wrap(body).putLong(due);
            try {
                producer.send(new Message(options.get("topic"), body), new SendCallback() {
                    @Override
                    public void onSuccess(SendResult result) {
                        permits.release();
                        took(nowMicros() - due);
                    }

                    @Override
                    public void onException(Throwable cause) {
                        permits.release();
                        failed.incrementAndGet();
                    }
                });
            } catch (Exception e) {
                permits.release();
                failed.incrementAndGet();
            }
        }
    }

    private void consume() throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.get("group"));
        consumer.setNamesrvAddr(options.get("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(options.get("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long now = nowMicros();
            for (MessageExt message : messages) {
                took(now - ByteBuffer.wrap(message.getBody()).getLong());
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        report();
        Thread.currentThread().join();
    }
}
