import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;

/**
 * A push consumer of the pop benchmark that only counts, until its process is ended.
 *
 * <p>Options: namesrv, topic, group, mode (pop: brokers assign queues, and must have the group in
 * that mode; or pull), threads, batch. Records, four times a second: {@code count} with the messages
 * so far, and those that were delivered before.
 */
final class PopLoad {
    public static void main(String[] args) {
        Leashed.endWithParent();
        try {
            consume(Harness.options(args));
        } catch (Exception e) {
            Harness.fail(e);
        }
    }

    private static void consume(Map<String, String> options) throws Exception {
        int threads = Integer.parseInt(options.get("threads"));
        int batch = Integer.parseInt(options.get("batch"));
        AtomicLong count = new AtomicLong();
        AtomicLong repeated = new AtomicLong();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.get("group"));
        consumer.setNamesrvAddr(options.get("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(threads);
        consumer.setConsumeThreadMax(threads);
        consumer.setConsumeMessageBatchMaxSize(batch);
        consumer.setPullBatchSize(batch);
        consumer.setPopBatchNums(batch);
        consumer.setClientRebalance(!options.get("mode").equals("pop"));
        consumer.subscribe(options.get("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            count.addAndGet(messages.size());
            messages.forEach(each -> repeated.addAndGet(each.getReconsumeTimes() > 0 ? 1 : 0));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        while (true) {
            Harness.emit("event", "count", "at_ms", System.currentTimeMillis(),
                "count", count.get(), "repeated", repeated.get());
            LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(250));
        }
    }
}
