// One producer of the coverage benchmark, with Apache's Go client, until its process is ended.
//
// Options as name=value: namesrv, topic, group, threads, what ("tag and key", "user properties").
// Records, twice a second, one JSON object per line: the messages so far and the sends that failed.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

var tags = []string{"TagA", "TagB", "TagC", "TagD"}

func message(options map[string]string, number int) *primitive.Message {
	made := primitive.NewMessage(options["topic"], []byte(strings.Repeat("x", 100)))
	made.WithTag(tags[number%len(tags)])
	made.WithKeys([]string{fmt.Sprintf("order-%d", number)})
	if options["what"] == "user properties" {
		for i := 0; i < 5; i++ {
			made.WithProperty(fmt.Sprintf("property%d", i), fmt.Sprintf("value-%d", number%1000))
		}
	}
	return made
}

func send(from rocketmq.Producer, options map[string]string, first, step int, count, failed *int64) {
	for number := first; ; number += step {
		if _, err := from.SendSync(context.Background(), message(options, number)); err != nil {
			atomic.AddInt64(failed, 1)
		} else {
			atomic.AddInt64(count, 1)
		}
	}
}

func main() {
	options := map[string]string{}
	for _, argument := range os.Args[1:] {
		name, value, _ := strings.Cut(argument, "=")
		options[name] = value
	}
	rlog.SetLogLevel("error")
	from, err := rocketmq.NewProducer(
		producer.WithNsResolver(primitive.NewPassthroughResolver([]string{options["namesrv"]})),
		producer.WithGroupName(options["group"]),
	)
	if err == nil {
		err = from.Start()
	}
	threads, wrong := strconv.Atoi(options["threads"])
	if err != nil || wrong != nil {
		fmt.Fprintln(os.Stderr, err, wrong)
		os.Exit(1)
	}
	var count, failed int64
	for first := 0; first < threads; first++ {
		go send(from, options, first, threads, &count, &failed)
	}
	for {
		fmt.Printf("{\"event\":\"count\",\"at_ms\":%d,\"count\":%d,\"failed\":%d}\n",
			time.Now().UnixMilli(), atomic.LoadInt64(&count), atomic.LoadInt64(&failed))
		time.Sleep(500 * time.Millisecond)
	}
}
