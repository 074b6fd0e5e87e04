import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.zip.CRC32;

/** Maps, lists and arrays that are changed by four threads; prints what they come to. */
public class Maps {
    static long work(int thread, int count) {
        Map<Integer, String> table = new HashMap<>();
        TreeMap<String, int[]> tree = new TreeMap<>();
        for (int i = 0; i < count; i++) {
            table.put(i, "thread " + thread + " value " + i);
            if (i % 5 == 0) {
                int[] numbers = new int[64];
                Arrays.fill(numbers, i);
                tree.put("key " + i, numbers);
            }
        }
        CRC32 sum = new CRC32();
        for (int turn = 0; turn < 3; turn++) {
            for (Map.Entry<Integer, String> entry : table.entrySet()) {
                sum.update(entry.getValue().getBytes());
            }
            for (int[] numbers : tree.values()) {
                for (int number : numbers) {
                    sum.update(number);
                }
                numbers[turn]++;
            }
            for (int i = turn; i < count; i += 9) {
                table.put(i, table.get(i) + " turn " + turn);
            }
        }
        return sum.getValue();
    }

    public static void main(String[] arguments) throws Exception {
        int count = 20_000 * Integer.parseInt(arguments[0]);
        long[] sums = new long[4];
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < sums.length; i++) {
            int number = i;
            threads.add(new Thread(() -> sums[number] = work(number, count)));
        }
        for (Thread thread : threads) {
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        System.out.println(Arrays.toString(sums));
    }
}
