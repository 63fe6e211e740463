package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"k8s.io/client-go/kubernetes"
)

// apiUse counts the requests to the API server so far, by all clients.
type apiUse struct {
	// requests is how many, by verb, resource and, of those refused, code.
	requests map[string]float64
	// cpu is its processor time, in seconds.
	cpu float64
}

// apiUse reads the API server's own metrics.
func (a *agent) apiUse(ctx context.Context) (apiUse, error) {
	out := apiUse{requests: map[string]float64{}}
	c, err := kubernetes.NewForConfig(a.lab.Clusters[0].RESTConfig())
	if err != nil {
		return out, err
	}
	b, err := c.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return out, err
	}
	eachSample(b, func(metric, labels string, v float64) {
		switch metric {
		case metricCPU:
			out.cpu = v
		case "apiserver_request_total":
			out.requests[requestOf(labels)] += v
		}
	})
	return out, nil
}

// serverProfile keeps a profile of the API server over so many seconds.
func (a *agent) serverProfile(ctx context.Context, seconds int, file string) error {
	c, err := kubernetes.NewForConfig(a.lab.Clusters[0].RESTConfig())
	if err != nil {
		return err
	}
	b, err := c.Discovery().RESTClient().Get().AbsPath("/debug/pprof/profile").Param("seconds", strconv.Itoa(seconds)).DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("profile the API server of %s: %w", a.name, err)
	}
	return os.WriteFile(file, b, 0o644)
}

// metricCPU is the processor time of a process, in seconds.
const metricCPU = "process_cpu_seconds_total"

// eachSample calls f with each value of metrics in Prometheus' text format, whose labels
// are as they stand there.
func eachSample(text []byte, f func(metric, labels string, v float64)) {
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		name, text, _ := strings.Cut(lines.Text(), " ")
		if v, err := strconv.ParseFloat(text, 64); err == nil {
			metric, labels, _ := strings.Cut(name, "{")
			f(metric, labels, v)
		}
	}
}

// requestOf names a kind of request by the labels of its metric.
func requestOf(labels string) string {
	get := func(name string) string {
		_, rest, _ := strings.Cut(","+labels, ","+name+`="`)
		v, _, _ := strings.Cut(rest, `"`)
		return v
	}
	out := get("verb") + " " + get("resource")
	if s := get("subresource"); s != "" {
		out += "/" + s
	}
	if code := get("code"); code >= "300" {
		out += " " + code
	}
	return out
}

// since returns the requests for the agent's objects, and those that peers cause, since before:
// their number, and a list for people, both per peer.
func (u apiUse) since(before apiUse, n int) (all float64, list string) {
	var b strings.Builder
	for _, what := range slices.Sorted(maps.Keys(u.requests)) {
		count := u.requests[what] - before.requests[what]
		_, resource, _ := strings.Cut(what, " ")
		resource, _, _ = strings.Cut(resource, "/")
		switch resource, _, _ = strings.Cut(resource, " "); resource {
		case "foreignclusters", "contracts", "tunnels", "secrets", "events":
			if count > 0 {
				all += count
				fmt.Fprintf(&b, "%8.2f  %s\n", count/float64(n), what)
			}
		}
	}
	return all / float64(n), b.String()
}

// keepRequests saves the list of requests, if files are wanted.
func (b *bench) keepRequests(list string, n int) error {
	if b.keep == "" {
		return nil
	}
	return os.WriteFile(b.file(n, "requests.txt"), []byte(list), 0o644)
}
