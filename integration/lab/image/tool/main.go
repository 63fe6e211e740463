// Command tool is the lab's test image: a web and echo server that says who it
// is, and the few clients that a test or a demo wants inside a pod. It has no
// shell, and runs as any user.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// health is a file with which a test can set the server's health; it is healthy if that contains
// ok, or nothing.
const health = "/tmp/health"

const usage = `usage: tool [COMMAND]
  serve [ADDRESS]            the default: HTTP and gRPC's health service on :8080, TCP and UDP echo on :8081
  curl [-4|-6] [-n N] [-t D] URL
                             fetch URL N times, waiting at most D each time
  api [-w D] PATH            ask the API server, as client-go does in a cluster, and watch
                             for D
  dig NAME                   addresses of NAME
  echo tcp|udp HOST:PORT TXT send TXT and print what comes back
  sleep [SECONDS]            wait; for ever without SECONDS
  spin CORES                 use so much CPU, such as 0.1, for ever
  env                        print the environment
  cat FILE...                print files
  write FILE TXT             write TXT to FILE
  open FILE                  open FILE for reading and writing, e.g. a device
  tar cf - FILE | -xmf - [-C DIR]
                             what kubectl cp asks of a program tar, as which this is there, too
  exit [CODE]                end with CODE`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	args := os.Args[1:]
	switch {
	case filepath.Base(os.Args[0]) == "tar":
		args = append([]string{"tar"}, args...)
	case len(args) == 0:
		args = []string{"serve"}
	}
	if err := run(ctx, args[0], args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "tool:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, command string, args []string) error {
	switch command {
	case "serve":
		return serve(ctx, args)
	case "curl":
		return curl(ctx, args)
	case "api":
		return api(ctx, args)
	case "dig":
		return dig(ctx, args)
	case "echo":
		return echo(ctx, args)
	case "sleep":
		return sleep(ctx, args)
	case "spin":
		return spin(ctx, args)
	case "env":
		env := os.Environ()
		sort.Strings(env)
		fmt.Println(strings.Join(env, "\n"))
		return nil
	case "cat":
		return cat(args)
	case "write":
		if len(args) != 2 {
			return errors.New(usage)
		}
		return os.WriteFile(args[0], []byte(args[1]), 0o644)
	case "open":
		return open(args)
	case "tar":
		return tarFiles(args)
	case "exit":
		code := 0
		if len(args) > 0 {
			var err error
			if code, err = strconv.Atoi(args[0]); err != nil {
				return err
			}
		}
		os.Exit(code)
	}
	return errors.New(usage)
}

// whoami is the server's response.
type whoami struct {
	Hostname  string            `json:"hostname"`
	Pod       string            `json:"pod,omitempty"`
	Namespace string            `json:"namespace,omitempty"`
	Node      string            `json:"node,omitempty"`
	Cluster   string            `json:"cluster,omitempty"`
	Addresses []string          `json:"addresses"`
	Client    string            `json:"client"`
	Method    string            `json:"method"`
	Path      string            `json:"path"`
	Headers   map[string]string `json:"headers,omitempty"`
}

func me() whoami {
	w := whoami{Pod: os.Getenv("POD_NAME"), Namespace: os.Getenv("POD_NAMESPACE"), Node: os.Getenv("NODE_NAME"), Cluster: os.Getenv("CLUSTER_NAME")}
	w.Hostname, _ = os.Hostname()
	if w.Pod == "" {
		w.Pod = w.Hostname
	}
	if as, err := net.InterfaceAddrs(); err == nil {
		for _, a := range as {
			if n, ok := a.(*net.IPNet); ok && !n.IP.IsLoopback() && !n.IP.IsLinkLocalUnicast() {
				w.Addresses = append(w.Addresses, n.IP.String())
			}
		}
	}
	return w
}

func serve(ctx context.Context, args []string) error {
	address := ":8080"
	if len(args) > 0 {
		address = args[0]
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return err
	}
	echoAddress := net.JoinHostPort(host, strconv.Itoa(n+1))
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		i := me()
		i.Client, i.Method, i.Path = r.RemoteAddr, r.Method, r.URL.Path
		fmt.Printf("%s %s %s from %s\n", time.Now().UTC().Format(time.RFC3339), r.Method, r.URL.Path, r.RemoteAddr)
		if r.URL.Query().Has("headers") {
			i.Headers = map[string]string{}
			for k := range r.Header {
				i.Headers[k] = r.Header.Get(k)
			}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(i)
	})
	mux.HandleFunc("/name", func(w http.ResponseWriter, r *http.Request) {
		i := me()
		fmt.Printf("%s %s %s from %s\n", time.Now().UTC().Format(time.RFC3339), r.Method, r.URL.Path, r.RemoteAddr)
		fmt.Fprintf(w, "%s on %s in %s\n", i.Pod, i.Node, i.Cluster)
	})
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		if said, err := os.ReadFile(health); err == nil && string(said) != "ok" {
			http.Error(w, string(said), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("POST /grpc.health.v1.Health/Check", grpcHealth)
	// bytes answers with N bytes; sink counts what it is sent.
	mux.HandleFunc("/bytes/{n}", func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.ParseInt(r.PathValue("n"), 10, 64)
		if err != nil || n < 0 {
			http.Error(w, "want a number of bytes", http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
		_, _ = io.CopyN(w, zeros{}, n)
	})
	mux.HandleFunc("/sink", func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprintln(w, n, err)
	})
	srv := &http.Server{Addr: address, Handler: mux, ReadHeaderTimeout: 10 * time.Second, Protocols: new(http.Protocols)}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetUnencryptedHTTP2(true) // as gRPC without TLS speaks it
	var listen net.ListenConfig
	tcp, err := listen.Listen(ctx, "tcp", echoAddress)
	if err != nil {
		return err
	}
	udp, err := listen.ListenPacket(ctx, "udp", echoAddress)
	if err != nil {
		return err
	}
	go echoTCP(tcp)
	go echoUDP(udp)
	fmt.Printf("%s listens on %s, echo on %s\n", me().Pod, address, echoAddress)
	go func() {
		<-ctx.Done()
		c, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		_ = srv.Shutdown(c)
	}()
	if err := srv.ListenAndServe(); err != http.ErrServerClosed {
		return err
	}
	return nil
}

// grpcHealth answers a Check of gRPC's health protocol with SERVING.
func grpcHealth(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Trailer", "Grpc-Status")
	_, _ = w.Write([]byte{0, 0, 0, 0, 2, 8, 1}) // not compressed, two bytes: field 1, the status, is 1
	w.Header().Set("Grpc-Status", "0")
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func echoTCP(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			_, _ = io.Copy(c, c)
		}()
	}
}

func echoUDP(c net.PacketConn) {
	b := make([]byte, 65536)
	for {
		n, from, err := c.ReadFrom(b)
		if err != nil {
			return
		}
		_, _ = c.WriteTo(b[:n], from)
	}
}

func curl(ctx context.Context, args []string) error {
	times, timeout, network := 1, 5*time.Second, "tcp"
	for len(args) > 1 {
		if args[0] == "-4" || args[0] == "-6" {
			network = "tcp" + args[0][1:]
			args = args[1:]
			continue
		}
		var err error
		switch args[0] {
		case "-n":
			times, err = strconv.Atoi(args[1])
		case "-t":
			timeout, err = time.ParseDuration(args[1])
		default:
			return errors.New(usage)
		}
		if err != nil {
			return err
		}
		args = args[2:]
	}
	if len(args) != 1 {
		return errors.New(usage)
	}
	url := args[0]
	if !strings.Contains(url, "://") {
		url = "http://" + url
	}
	dial := func(ctx context.Context, _, address string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	client := &http.Client{Timeout: timeout, Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
	failed := 0
	for range times {
		if err := fetch(ctx, client, url); err != nil {
			failed++
			fmt.Fprintln(os.Stderr, "tool:", err)
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d requests failed", failed, times)
	}
	return nil
}

func fetch(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil) //nolint:gosec // the caller chooses it
	if err != nil {
		return err
	}
	resp, err := client.Do(req) //nolint:gosec // see above
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(os.Stdout, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode >= 400 {
		return fmt.Errorf("%s answers %s", url, resp.Status)
	}
	return nil
}

func dig(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return errors.New(usage)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	as, err := net.DefaultResolver.LookupHost(ctx, args[0])
	if err != nil {
		return err
	}
	fmt.Println(strings.Join(as, "\n"))
	return nil
}

func echo(ctx context.Context, args []string) error {
	if len(args) != 3 || args[0] != "tcp" && args[0] != "udp" {
		return errors.New(usage)
	}
	c, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, args[0], args[1])
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, args[2]); err != nil {
		return err
	}
	b := make([]byte, len(args[2]))
	if _, err := io.ReadFull(c, b); err != nil {
		return err
	}
	fmt.Println(string(b))
	return nil
}

func sleep(ctx context.Context, args []string) error {
	if len(args) == 0 {
		<-ctx.Done()
		return nil
	}
	s, err := strconv.ParseFloat(args[0], 64)
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(s * float64(time.Second))):
	}
	return nil
}

// spin uses CPU: what the kernel counts, since a busy machine gives less than asked for.
func spin(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return errors.New(usage)
	}
	cores, err := strconv.ParseFloat(args[0], 64)
	if err != nil {
		return err
	}
	for tick := time.NewTicker(50 * time.Millisecond); ; {
		for begin, used := time.Now(), cpuTime(); cpuTime()-used < time.Duration(cores*float64(50*time.Millisecond)) && time.Since(begin) < time.Second; {
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// cpuTime is the CPU time of this process.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func cat(files []string) error {
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		if _, err := os.Stdout.Write(b); err != nil {
			return err
		}
	}
	return nil
}

func open(args []string) error {
	if len(args) != 1 {
		return errors.New(usage)
	}
	f, err := os.OpenFile(args[0], os.O_RDWR, 0)
	if err != nil {
		return err
	}
	fmt.Println("opened", args[0])
	return f.Close()
}
