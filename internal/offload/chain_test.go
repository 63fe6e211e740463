package offload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	vkapi "github.com/virtual-kubelet/virtual-kubelet/node/api"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/exec"
	k8s "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/client"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/reflection"
	"github.com/entente-dev/entente/internal/stock"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/internal/wire/wiretest"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server"
)

var (
	_ server.OffloadObjects = (*Provider)(nil)
	_ server.OffloadStreams = (*Provider)(nil)
)

// kubelet answers an API server's paths for logs, exec, attach and port-forward
// with the real protocols, and with processes that are functions.
func kubelet(t *testing.T) *rest.Config {
	t.Helper()
	run := func(name string) vkapi.ContainerExecHandlerFunc {
		return func(_ context.Context, namespace, pod, container string, cmd []string, io2 vkapi.AttachIO) error {
			fmt.Fprintf(io2.Stdout(), "%s %s/%s/%s %s\n", name, namespace, pod, container, strings.Join(cmd, " "))
			if io2.TTY() {
				size := <-io2.Resize()
				fmt.Fprintf(io2.Stdout(), "%dx%d\n", size.Width, size.Height)
				return nil
			}
			if in := io2.Stdin(); in != nil {
				if _, err := io.Copy(io2.Stdout(), in); err != nil {
					return err
				}
			}
			if len(cmd) > 0 && cmd[0] == "fail" {
				fmt.Fprint(io2.Stderr(), "oh no")
				return exec.CodeExitError{Err: errors.New("failed"), Code: 42}
			}
			return nil
		}
	}
	attach := run("attach")
	h := vkapi.PodHandler(vkapi.PodHandlerConfig{
		RunInContainer: run("exec"),
		AttachToContainer: func(ctx context.Context, ns, pod, c string, a vkapi.AttachIO) error {
			return attach(ctx, ns, pod, c, nil, a)
		},
		GetContainerLogs: func(_ context.Context, namespace, pod, container string, o vkapi.ContainerLogOpts) (io.ReadCloser, error) {
			return io.NopCloser(strings.NewReader(fmt.Sprintf("log of %s/%s/%s, tail %d\n", namespace, pod, container, o.Tail))), nil
		},
		PortForward: func(_ context.Context, _, pod string, port int32, rw io.ReadWriteCloser) error {
			if port == 1 {
				return errors.New("connection refused")
			}
			fmt.Fprintf(rw, "%s:%d\n", pod, port)
			buf := make([]byte, 5)
			if _, err := io.ReadFull(rw, buf); err != nil {
				return err
			}
			_, err := rw.Write(bytes.ToUpper(buf))
			return err
		},
	}, true)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		part := strings.Split(strings.TrimPrefix(r.URL.Path, "/api/v1/namespaces/"), "/")
		if len(part) != 4 || part[1] != "pods" {
			http.NotFound(w, r)
			return
		}
		q := r.URL.Query()
		container := q.Get("container")
		for from, to := range map[string]string{"stdin": "input", "stdout": "output", "stderr": "error", "tty": "tty"} {
			if q.Get(from) == "true" {
				q.Set(to, "1")
			}
		}
		sub := map[string]string{"log": "containerLogs", "exec": "exec", "attach": "attach", "portforward": "portForward"}[part[3]]
		r.URL.Path = "/" + sub + "/" + part[0] + "/" + part[2]
		if sub != "portForward" {
			r.URL.Path += "/" + container
		}
		r.URL.RawQuery = q.Encode()
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return &rest.Config{Host: s.URL}
}

// home is a consumer's side that records what it receives.
type home struct {
	mu    sync.Mutex
	acks  map[peering.ObjectRef]peering.Ack
	words map[peering.ObjectRef]peering.PodStatus
}

func (h *home) Connected(bool)            {}
func (h *home) PodEvent(peering.PodEvent) {}
func (h *home) PodStatus(s peering.PodStatus) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.words[s.Ref] = s
}

func (h *home) Ack(a peering.Ack) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.acks[a.Ref] = a
}
func (h *home) Orphan(context.Context, peering.Held) bool { return false }

// dial serves a Provider's contracts to peerA, and returns the way to it.
func dial(t *testing.T, c *cluster, p *Provider) *grpc.ClientConn {
	t.Helper()
	svc, err := server.NewOffload(server.OffloadConfig{
		Objects: p, Streams: p,
		Contracts: func(id string) (server.OffloadContract, bool) {
			k, ok := c.contract(id)
			return server.OffloadContract{Consumer: k.Peer, Closed: !ok}, true
		},
		Peer: func(context.Context) (peering.ClusterID, bool) { return peerA, true },
	})
	if err != nil {
		t.Fatal(err)
	}
	lis := bufconn.Listen(1 << 20)
	g := wiretest.NewServer(grpc.MaxRecvMsgSize(wire.MaxOffloadMessage))
	ententev1.RegisterOffloadServiceServer(g, svc)
	go g.Serve(lis)
	t.Cleanup(g.Stop)
	conn, err := grpc.NewClient("passthrough:///bufconn", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func TestAPodGoesFromConsumerToProviderAndBack(t *testing.T) {
	c := newFake(t)
	c.rest = kubelet(t)
	p, _ := c.start(t)
	id, name := c.fresh("cpu=1")
	conn := dial(t, c, p)
	h := &home{acks: map[peering.ObjectRef]peering.Ack{}, words: map[peering.ObjectRef]peering.PodStatus{}}
	m, err := client.NewMirror(client.MirrorConfig{Contract: id, Conn: conn, Handler: h})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	pod := podObject(name, "web", "1")
	m.Want(pod)
	m.Want(namespaceObject(name, "Suffixed"))
	m.Ready()
	remote := name + "-aaaaaaaa"
	eventually(t, "the pod is there", func() bool { return c.get(t, remote, "web", &corev1.Pod{}) })
	c.setPhase(t, remote, "web", corev1.PodRunning, "10.200.0.7")
	eventually(t, "its status is at home", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return bytes.Contains(h.words[pod.Ref].Status, []byte(`"phase":"Running"`)) && h.acks[pod.Ref].Refusal == nil
	})
	testChainStreams(t, conn, id, pod.Ref, remote)
	m.Unwant(pod.Ref, nil)
	eventually(t, "it is gone on both sides", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.words[pod.Ref].Gone && !c.get(t, remote, "web", &corev1.Pod{})
	})
}

// consume runs the streams of a consumer's contract, until the test ends.
func consume(t *testing.T, c *cluster, p *Provider, id string, want ...peering.Object) *home {
	t.Helper()
	h := &home{acks: map[peering.ObjectRef]peering.Ack{}, words: map[peering.ObjectRef]peering.PodStatus{}}
	m, err := client.NewMirror(client.MirrorConfig{Contract: id, Conn: dial(t, c, p), Handler: h})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { m.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		run.Wait()
	})
	for _, o := range want {
		m.Want(o)
	}
	m.Ready()
	return h
}

// Changes and deletes of a consumer's ConfigMap or Secret by other writers are undone.
func TestAConfigThatSomebodyChangedIsAppliedAgain(t *testing.T) {
	set := func(o k8s.Object, key, value string) {
		switch o := o.(type) {
		case *corev1.ConfigMap:
			o.Data[key] = value
		case *corev1.Secret:
			o.Data[key] = []byte(value)
		}
	}
	update := func(change func(k8s.Object)) func(*testing.T, *cluster, k8s.Object) bool {
		return func(t *testing.T, c *cluster, o k8s.Object) bool {
			change(o)
			return c.owner.Update(t.Context(), o) == nil
		}
	}
	for what, change := range map[string]func(*testing.T, *cluster, k8s.Object) bool{
		"a value is another": update(func(o k8s.Object) { set(o, "a", "2") }),
		"there is one more":  update(func(o k8s.Object) { set(o, "b", "2") }),
		"all is gone":        update(clearData),
		"it is immutable": update(func(o k8s.Object) {
			switch o := o.(type) {
			case *corev1.ConfigMap:
				o.Immutable = new(true)
			case *corev1.Secret:
				o.Immutable = new(true)
			}
		}),
		"no contract holds it": update(func(o k8s.Object) { o.SetAnnotations(nil) }),
		"it is deleted": func(t *testing.T, c *cluster, o k8s.Object) bool {
			return c.owner.Delete(t.Context(), o) == nil
		},
	} {
		for _, o := range []k8s.Object{&corev1.ConfigMap{}, &corev1.Secret{}} {
			t.Run(fmt.Sprintf("%T: %s", o, what), func(t *testing.T) {
				t.Parallel()
				c := newFake(t)
				p, _ := c.start(t)
				id, name := c.fresh("cpu=1")
				remote := name + "-aaaaaaaa"
				data := `{"data":{"a":"MQ=="}}`
				consume(t, c, p, id, namespaceObject(name, "Suffixed"), thing(kindOf(o), name, "cfg", "u1", data), podObject(name, "web", "1m"))
				eventually(t, "it is there, and its pod is", func() bool {
					return c.get(t, remote, "cfg", o) && c.get(t, remote, "web", &corev1.Pod{})
				})
				was := o.DeepCopyObject().(k8s.Object)
				eventually(t, "another writer changed it", func() bool { return c.get(t, remote, "cfg", o) && change(t, c, o) })
				eventually(t, "it is as it was", func() bool {
					now := newShared(kindOf(o))
					return c.get(t, remote, "cfg", now) && reflection.Content(now) == reflection.Content(was) && maps.Equal(now.GetAnnotations(), was.GetAnnotations())
				})
			})
		}
	}
}

// A consumer is asked at most each compareInterval, so one question covers all that changed at the same time.
func TestConfigsChangedAtTheSameTimeAreAppliedAgainTogether(t *testing.T) {
	t.Parallel()
	c := newFake(t)
	p, _ := c.start(t)
	id, name := c.fresh("cpu=1")
	objects := []peering.Object{namespaceObject(name, "Suffixed")}
	names := []string{"a", "b", "c"}
	for _, n := range names {
		objects = append(objects, thing(peering.KindConfigMap, name, n, "u-"+n, `{"data":{"a":"1"}}`))
	}
	consume(t, c, p, id, append(objects, podObject(name, "web", "1m"))...)
	remote := name + "-aaaaaaaa"
	cm := &corev1.ConfigMap{}
	eventually(t, "the pod is there", func() bool { return c.get(t, remote, "web", &corev1.Pod{}) })
	for _, n := range names {
		eventually(t, n+" is changed", func() bool {
			if !c.get(t, remote, n, cm) {
				return false
			}
			cm.Data["a"] = "2"
			return c.owner.Update(t.Context(), cm) == nil
		})
	}
	for _, n := range names {
		eventually(t, n+" is as it was", func() bool { return c.get(t, remote, n, cm) && cm.Data["a"] == "1" })
	}
}

func clearData(o k8s.Object) {
	switch o := o.(type) {
	case *corev1.ConfigMap:
		clear(o.Data)
	case *corev1.Secret:
		clear(o.Data)
	}
}

// Changes while no agent ran, and in namespaces that are not watched, as no pod runs there, are found as
// well.
func TestAConfigThatSomebodyChangedWhileTheAgentWasAwayIsAppliedAgain(t *testing.T) {
	t.Parallel()
	c := newFake(t)
	p, stop := c.start(t)
	id, name := c.fresh("cpu=1")
	remote := name + "-aaaaaaaa"
	wanted := []peering.Object{namespaceObject(name, "Suffixed"), thing(peering.KindConfigMap, name, "cfg", "u1", `{"data":{"a":"1"}}`)}
	apply(t, p, id, wanted...)
	stop()
	cm := &corev1.ConfigMap{}
	if !c.get(t, remote, "cfg", cm) {
		t.Fatal("it is not there")
	}
	cm.Data["a"] = "2"
	if err := c.owner.Update(t.Context(), cm); err != nil {
		t.Fatal(err)
	}
	p, _ = c.start(t)
	consume(t, c, p, id, wanted...)
	eventually(t, "it is as it was", func() bool { return c.get(t, remote, "cfg", cm) && cm.Data["a"] == "1" })
}

// What the agent itself writes is not read again.
func TestAnAppliedConfigIsNotReadAgain(t *testing.T) {
	t.Parallel()
	c := newFake(t)
	var reads atomic.Int64
	c.agent = interceptor.NewClient(c.agent, interceptor.Funcs{
		Get: func(ctx context.Context, c k8s.WithWatch, key k8s.ObjectKey, o k8s.Object, opts ...k8s.GetOption) error {
			if key.Name == "cfg" {
				reads.Add(1)
			}
			return c.Get(ctx, key, o, opts...)
		},
	})
	p, _ := c.start(t)
	id, name := c.fresh("cpu=1")
	apply(t, p, id, namespaceObject(name, "Suffixed"), podObject(name, "web", "1m"))
	for n := range 3 {
		apply(t, p, id, thing(peering.KindConfigMap, name, "cfg", "u1", fmt.Sprintf(`{"data":{"a":"%d"}}`, n)))
		eventually(t, "it is seen, and was compared", func() bool {
			same := false
			p.inv.config(stock.Key{Kind: peering.KindConfigMap, Namespace: name + "-aaaaaaaa", Name: "cfg"}, func(s *configState) { same = s.seen != "" && s.seen == s.intact })
			return same && p.configs.Idle()
		})
	}
	// Each apply reads the object.
	if n := reads.Load(); n != 3 {
		t.Errorf("it was read %d times for 3 applies", n)
	}
}

// If a writer goes on changing an object, its changes stay for longer and longer.
func TestAnotherWriterIsNotFought(t *testing.T) {
	t.Parallel()
	var s configState
	now, asked := time.Unix(1_800_000_000, 0), 0
	for end := now.Add(6 * time.Hour); now.Before(end); now = now.Add(time.Second) {
		if !now.Before(s.asked.Add(s.pause)) {
			s.ask(now)
			asked++
		}
	}
	if s.pause != configCalm/2 || asked > 16 {
		t.Errorf("asked %d times in six hours, and then each %s", asked, s.pause)
	}
	if s.ask(now.Add(configCalm)); s.pause != compareInterval {
		t.Errorf("after a calm hour the pause is %s", s.pause)
	}
}

// Changes by other writers of a policy's or a Service's note are undone, and allow no traffic.
func TestANoteThatWasChangedIsAppliedAgain(t *testing.T) {
	for name, change := range map[string]func(a map[string]string, key string){
		"it is gone":                 func(a map[string]string, key string) { delete(a, key) },
		"it is not JSON":             func(a map[string]string, key string) { a[key] = "gzip:x" },
		"it allows everything":       func(a map[string]string, key string) { a[key] = `{"ingress":[{}]}` },
		"it leads elsewhere":         func(a map[string]string, key string) { a[key] = strings.ReplaceAll(a[key], "10.1.0.5", "10.1.0.9") },
		"its name at home is gone":   func(a map[string]string, key string) { delete(a, api.LabelOriginName) },
		"all that was noted is gone": func(a map[string]string, key string) { clear(a) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newFake(t)
			p, _ := c.start(t)
			id, name := c.fresh("cpu=1")
			k, _ := c.contract(id)
			k.NetworkPolicies = true
			c.set(id, &k)
			consume(t, c, p, id,
				namespaceObject(name, "Suffixed"),
				thing(peering.KindNetworkPolicy, name, "web", "np1", `{"ingress":[{"addresses":["10.1.0.5"]}]}`),
				thing(peering.KindService, name, "web", "svc1", `{"ports":[{"name":"http","protocol":"TCP","port":80}],"endpoints":[{"address":"10.1.0.5","ready":true,"ports":{"http":80}}]}`))
			np := &networkingv1.NetworkPolicy{}
			eventually(t, "the policy is there", func() bool { return c.get(t, name+"-aaaaaaaa", "home-web", np) })
			svc := &corev1.Service{}
			eventually(t, "the Service is there, and leads home", func() bool {
				return c.get(t, np.Namespace, "web", svc) && slices.Equal(c.addressesIn(t, np.Namespace), []string{"10.241.0.5"})
			})
			for o, key := range map[k8s.Object]string{np: notePolicy, svc: reflection.NoteService} {
				want := maps.Clone(o.GetAnnotations())
				p.compared.Clear()
				eventually(t, "another writer changed it", func() bool {
					c.get(t, o.GetNamespace(), o.GetName(), o)
					change(o.GetAnnotations(), key)
					return c.owner.Update(t.Context(), o) == nil
				})
				eventually(t, "it is as it was", func() bool {
					c.get(t, np.Namespace, np.Name, np)
					if !slices.Equal(blocksOf(np), []string{"10.241.0.5/32"}) {
						t.Fatalf("it allows %+v", np.Spec.Ingress)
					}
					if to := c.addressesIn(t, np.Namespace); !slices.Equal(to, []string{"10.241.0.5"}) {
						t.Fatalf("the Service leads to %v", to)
					}
					return c.get(t, o.GetNamespace(), o.GetName(), o) && maps.Equal(o.GetAnnotations(), want)
				})
			}
		})
	}
}

// testInjectedContainer wants no stream into a container that the provider's cluster added to a pod.
func testInjectedContainer(t *testing.T, conn *grpc.ClientConn, id string, pod peering.ObjectRef) {
	t.Helper()
	_, logErr := client.Logs(t.Context(), conn, id, pod, peering.LogOptions{Container: "mesh"})
	for what, err := range map[string]error{
		"logs":   logErr,
		"exec":   client.Exec(t.Context(), conn, id, pod, peering.ExecOptions{Container: "mesh", Command: []string{"cat", "/secret"}, Stdout: io.Discard}),
		"attach": client.Exec(t.Context(), conn, id, pod, peering.ExecOptions{Container: "mesh", Stdout: io.Discard}),
	} {
		if wire.ReasonOf(err) != peering.ReasonRequestInvalid || !strings.Contains(err.Error(), "mesh") || !strings.Contains(err.Error(), "its containers are c") {
			t.Errorf("%s of a container that the provider added: %v", what, err)
		}
	}
}

func testChainStreams(t *testing.T, conn *grpc.ClientConn, id string, pod peering.ObjectRef, remote string) {
	log, err := client.Logs(t.Context(), conn, id, pod, peering.LogOptions{Container: "c", TailLines: func() *int64 { n := int64(7); return &n }()})
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(log)
	if want := "log of " + remote + "/web/c, tail 7\n"; err != nil || string(b) != want {
		t.Errorf("log %q, %v", b, err)
	}
	var out, errs bytes.Buffer
	err = client.Exec(t.Context(), conn, id, pod, peering.ExecOptions{
		Container: "c", Command: []string{"fail", "now"}, Stdin: strings.NewReader("input"), Stdout: &out, Stderr: &errs,
	})
	var exit exec.CodeExitError
	if !errors.As(err, &exit) || exit.Code != 42 || out.String() != "exec "+remote+"/web/c fail now\ninput" || errs.String() != "oh no" {
		t.Errorf("exec: %v, %q, %q", err, out.String(), errs.String())
	}
	out.Reset()
	sized := false
	resize := func(context.Context) (peering.TerminalSize, bool) {
		first := !sized
		sized = true
		return peering.TerminalSize{Width: 100, Height: 30}, first
	}
	err = client.Exec(t.Context(), conn, id, pod, peering.ExecOptions{Container: "c", Stdout: &out, TTY: true, Resize: resize})
	if err != nil || !strings.Contains(out.String(), "attach") || !strings.Contains(out.String(), "100x30") {
		t.Errorf("attach: %v, %q", err, out.String())
	}
	near, far := net.Pipe()
	defer near.Close()
	done := make(chan error, 1)
	go func() { done <- client.PortForward(t.Context(), conn, id, pod, 8080, far) }()
	_ = near.SetDeadline(time.Now().Add(time.Minute))
	buf := make([]byte, len("web:8080\n"))
	if _, err := io.ReadFull(near, buf); err != nil || string(buf) != "web:8080\n" {
		t.Fatalf("port-forward: %q, %v", buf, err)
	}
	if _, err := near.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(near, buf[:5]); err != nil || string(buf[:5]) != "HELLO" {
		t.Fatalf("port-forward: %q, %v", buf[:5], err)
	}
	if err := <-done; err != nil {
		t.Errorf("port-forward: %v", err)
	}
	_, far = net.Pipe()
	if err := client.PortForward(t.Context(), conn, id, pod, 1, far); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("a port without a listener: %v", err)
	}
	testInjectedContainer(t, conn, id, pod)
	gone := pod
	gone.UID = "another"
	if _, err := client.Logs(t.Context(), conn, id, gone, peering.LogOptions{Container: "c"}); wire.ReasonOf(err) != peering.ReasonPodUnknown {
		t.Errorf("a pod with another UID: %v", err)
	}
}
