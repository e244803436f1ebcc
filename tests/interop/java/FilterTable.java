import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.common.filter.ExpressionType;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.expression.MQFilterException;
import org.apache.rocketmq.filter.util.BloomFilter;

/**
 * What RocketMQ's own filter classes make of a table of expressions and of Bloom keys.
 *
 * <p>Option: cases, a file of JSON lines. A line with "sql" and "properties" (a list of objects)
 * is answered by a record with "results": one of true, false, null or "error" for each object, or
 * null instead of the list if the expression does not compile. A line with "key", "error_rate" and
 * "expected" is answered by "bits" and "positions" of the Bloom filter.
 */
final class FilterTable {
    private FilterTable() {
    }

    public static void main(String[] args) {
        Leashed.endWithParent();
        try {
            for (String line : Files.readAllLines(Path.of(Harness.options(args).get("cases")))) {
                JSONObject row = JSON.parseObject(line);
                if (row.containsKey("sql")) {
                    Harness.emit("results", results(row));
                } else {
                    bloom(row);
                }
            }
        } catch (Exception e) {
            Harness.fail(e);
        }
        System.exit(0);
    }

    private static List<Object> results(JSONObject row) {
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get(ExpressionType.SQL92).compile(row.getString("sql"));
        } catch (MQFilterException e) {
            return null;
        }
        List<Object> results = new ArrayList<>();
        for (JSONObject properties : row.getJSONArray("properties").toList(JSONObject.class)) {
            results.add(result(expression, properties));
        }
        return results;
    }

    private static Object result(Expression expression, JSONObject properties) {
        try {
            Map<String, String> map = new HashMap<>();
            properties.forEach((name, value) -> map.put(name, (String) value));
            return expression.evaluate(new MessageEvaluationContext(map));
        } catch (Throwable e) {
            return "error";
        }
    }

    private static void bloom(JSONObject row) {
        BloomFilter filter =
            BloomFilter.createByFn(row.getIntValue("error_rate"), row.getIntValue("expected"));
        List<Integer> positions = new ArrayList<>();
        for (int position : filter.calcBitPositions(row.getString("key"))) {
            positions.add(position);
        }
        Harness.emit("bits", filter.getM(), "positions", positions);
    }
}
