package fabric

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/discovery/mdns"
	"github.com/entente-dev/entente/internal/kube"
)

// inside is a responder that runs in a network namespace: its sockets are opened by the
// thread of Run, which never runs anything else.
type inside struct {
	*mdns.Responder
	ns string
}

func (r inside) Run(ctx context.Context) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // it ends with the goroutine
		f, err := os.Open("/run/netns/" + r.ns)
		if err == nil {
			defer f.Close()
			err = unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
		}
		if err == nil {
			err = r.Responder.Run(ctx)
		}
		done <- err
	}()
	return <-done
}

// TestNodesFindEachOtherOnARealLAN: two clusters' nodes on one link publish themselves
// and find each other, and those that go are gone.
func TestNodesFindEachOtherOnARealLAN(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("root makes network namespaces")
	}
	id := fmt.Sprintf("lan%d", os.Getpid()%100000)
	ns := []string{id + "-a", id + "-b"}
	ip := func(args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), "ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	for i, name := range ns {
		if out, err := exec.CommandContext(t.Context(), "ip", "netns", "add", name).CombinedOutput(); err != nil {
			t.Skipf("no network namespaces here: %v %s", err, out)
		}
		t.Cleanup(func() { _ = exec.Command("ip", "netns", "delete", name).Run() })
		if i == 1 {
			ip("-n", ns[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", name)
		}
	}
	for i, name := range ns {
		ip("-n", name, "addr", "add", fmt.Sprintf("192.0.2.%d/24", i+1), "dev", "eth0")
		ip("-n", name, "link", "set", "eth0", "up")
	}

	clients, stops := map[string]client.Client{}, map[string]func(){}
	for i, name := range ns {
		p := published(7443, fmt.Sprintf("192.0.2.%d", i+1))
		p.Instance, p.Name, p.ClusterID, p.Host = name[len(id)+1:], name[len(id)+1:], string(testID(name[len(id)+1])), "entente-"+name[len(id)+1:]
		p.Automatic = i == 0
		c := fake.NewClientBuilder().WithScheme(kube.Scheme()).WithStatusSubresource(&v1alpha1.NodeDiscovery{}).WithObjects(
			&v1alpha1.NodeDiscovery{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: v1alpha1.NodeDiscoverySpec{Publish: p, Interfaces: []string{"eth*"}}},
		).Build()
		n := &nodeLAN{node: "n", client: c, log: slog.New(slog.DiscardHandler), respond: func(interfaces []string) (responder, func(context.Context) error) {
			r := inside{mdns.New(mdns.Config{Interface: mdns.NamedInterfaces(interfaces)}), name}
			return r, r.Run
		}}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			n.follow(ctx, nil)
		}()
		clients[name], stops[name] = c, func() {
			cancel()
			<-done
		}
		t.Cleanup(stops[name])
	}
	until := func(name, what string, ok func(v1alpha1.NodeDiscoveryStatus) bool) time.Duration {
		t.Helper()
		began := time.Now()
		for {
			var nd v1alpha1.NodeDiscovery
			if err := clients[name].Get(t.Context(), client.ObjectKey{Name: "n"}, &nd); err != nil {
				t.Fatal(err)
			}
			if ok(nd.Status) {
				return time.Since(began)
			}
			if time.Since(began) > time.Minute {
				t.Fatalf("after a minute %s does not report %s but %+v", name, what, nd.Status)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	finds := func(who, at string, automatic bool) func(v1alpha1.NodeDiscoveryStatus) bool {
		return func(s v1alpha1.NodeDiscoveryStatus) bool {
			return len(s.Clusters) == 1 && s.Clusters[0].Name == who && s.Clusters[0].ClusterID == string(testID(who[0])) && s.Clusters[0].Interface == "eth0" &&
				slices.Equal(s.Clusters[0].Endpoints, []string{at}) && s.Clusters[0].Automatic == automatic
		}
	}
	t.Logf("found after %s", until(ns[0], "b", finds("b", "192.0.2.2:7443", false)))
	until(ns[1], "a", finds("a", "192.0.2.1:7443", true))
	time.Sleep(lanStatusPause) // reports are so far apart
	stops[ns[1]]()
	// The records live one second longer (RFC 6762 section 10.1).
	t.Logf("gone after %s", until(ns[0], "none", func(s v1alpha1.NodeDiscoveryStatus) bool { return len(s.Clusters) == 0 }))
}
