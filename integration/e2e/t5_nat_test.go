package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// TestConsumerBehindNAT and TestProviderBehindNAT peer two clusters of which only
// one can be dialled. The translation gives each flow a port of its own choice and
// forgets the idle ones after 30 s, as the worse routers do.
func TestConsumerBehindNAT(t *testing.T) {
	behindNAT(t, func(w *World) *Side { return w.Home })
}

func TestProviderBehindNAT(t *testing.T) {
	behindNAT(t, func(w *World) *Side { return w.Abroad })
}

func behindNAT(t *testing.T, which func(*World) *Side) {
	t.Helper()
	ctx, w := onStage(t)
	ok(t, w.Unpeer(ctx))
	hidden := which(w)
	open := hidden.Other
	ok(t, w.NAT(ctx, hidden))
	forgetful(ctx, t, w)

	peerPort := fmt.Sprint(PeerNodePort)
	for _, address := range []netip.Addr{hidden.Plan.Control().Address, hidden.Plan.Public} {
		if conn, err := open.DialOnNode(ctx, "tcp", net.JoinHostPort(address.String(), peerPort)); err == nil {
			_ = conn.Close()
			t.Fatalf("%s can dial %s, so this tests nothing", open.Name, address)
		}
	}

	begin := time.Now()
	ok(t, w.JoinBy(ctx, open))
	t.Logf("joined and connected in %s", time.Since(begin).Round(100*time.Millisecond))
	begin = time.Now()
	_, err := w.Home.Entente(ctx, "peer", w.Abroad.Name)
	ok(t, err)
	_, err = w.Peered(ctx, Soon)
	ok(t, err)
	t.Logf("peered in %s", time.Since(begin).Round(100*time.Millisecond))
	theContract(ctx, t, w)

	offloaded(ctx, t, w, shop)
	inn, innService := Web(shop, "inn", 1, AtHome)
	out, outService := Web(shop, "out", 1, Away)
	// Streams from abroad come to the echo server, so a Service has to lead there.
	innService.Spec.Ports = append(innService.Spec.Ports,
		corev1.ServicePort{Name: "echo", Port: echoPort}, corev1.ServicePort{Name: "echo-udp", Protocol: corev1.ProtocolUDP, Port: echoPort})
	ok(t, w.Home.Create(ctx, inn, innService, out, outService))
	inns, err := w.Home.PodsReady(ctx, Scheduled, shop, inn.Labels, 1)
	ok(t, err)
	outs, err := w.Home.PodsReady(ctx, Scheduled, shop, out.Labels, 1)
	ok(t, err)
	twin, err := w.Abroad.Twin(ctx, &outs[0])
	ok(t, err)
	lives := LivesOf([]corev1.Pod{inns[0], outs[0], *twin})

	t.Run("pods reach each other by name and by address, both ways", func(t *testing.T) {
		ok(t, w.Home.ReachesAll(ctx, Soon, shop, inns[0].Name, "http://out:8080/name", outs))
		ok(t, w.Home.ReachesAll(ctx, Soon, shop, outs[0].Name, "http://inn:8080/name", inns))
		for from, to := range map[string]string{inns[0].Name: outs[0].Status.PodIP, outs[0].Name: "inn"} {
			text, err := w.Home.InPod(ctx, shop, from, "/tool", "curl", "-t", "20s", "http://"+to+":8080/bytes/5000000")
			ok(t, err)
			if len(text) != 5000000 {
				t.Errorf("%d bytes came from %s to %s, want 5000000", len(text), to, from)
			}
		}
	})
	usable := func(t *testing.T) {
		t.Helper()
		text, err := w.Home.Kubectl(ctx, "logs", "-n", shop, outs[0].Name)
		ok(t, err)
		if !strings.Contains(text, "GET /name") {
			t.Errorf("the log of %s has no request:\n%s", outs[0].Name, text)
		}
		text, err = w.Home.InPod(ctx, shop, outs[0].Name, "/tool", "env")
		ok(t, err)
		if !strings.Contains(text, "POD_NAME="+outs[0].Name+"\n") {
			t.Errorf("exec printed\n%s", text)
		}
		_, err = w.Home.InPod(ctx, shop, outs[0].Name, "/tool", "exit", "7")
		if failed, is := err.(*CommandError); !is || failed.Code != 7 { //nolint:errorlint // as InPod returns it
			t.Errorf("a command that ends with 7 ends with %v", err)
		}
	}
	t.Run("logs and exec work", usable)
	t.Run("one side dialled, once, and the other follows its address", func(t *testing.T) {
		ok(t, oneSession(ctx, w, hidden))
		for _, s := range []struct {
			side *Side
			want string
		}{
			{hidden, netip.AddrPortFrom(open.Plan.Control().Address, WireGuardPort).String()},
			{open, hidden.Plan.Public.String() + ":"},
		} {
			out, err := s.side.WireGuard(ctx, "entente0", "endpoints")
			ok(t, err)
			if fields := strings.Fields(out); len(fields) != 2 || !strings.HasPrefix(fields[1], s.want) {
				t.Errorf("the endpoint that %s sends to is %q, want %s", s.side.Name, fields, s.want)
			}
		}
	})

	// What comes from the open side needs the translation to know the way.
	source, target := inns[0].Status.PodIP, outs[0].Status.PodIP
	if open == w.Abroad {
		peer, err := w.Abroad.Peer(ctx)
		ok(t, err)
		source = twin.Status.PodIP
		target, err = Alias(peer, inns[0].Status.PodIP)
		ok(t, err)
	}
	t.Run("the way in stays open while nothing passes and the fabric hangs", func(t *testing.T) {
		for _, s := range w.Sides() {
			// Its probes would keep the way open too.
			thaw, err := s.Freeze(ctx, PartNode)
			ok(t, err)
			defer func() { ok(t, thaw()) }()
		}
		time.Sleep(40 * time.Second) // less than it takes the kubelet to lose patience
		stream, err := open.StartStream(ctx, source, target)
		ok(t, err)
		time.Sleep(2 * time.Second)
		result := stream.Stop()
		t.Log(result)
		if result.Lost > 0 || result.TCPError != nil || result.Sent < 200 {
			t.Errorf("%s", result)
		}
	})
	t.Run("the translation is forgotten, and all finds its way again", func(t *testing.T) {
		_, err := w.Peered(ctx, Restarted)
		ok(t, err)
		stream, err := open.StartStream(ctx, source, target)
		ok(t, err)
		time.Sleep(time.Second)
		begin := time.Now()
		_, flushErr := w.OnInternet(ctx, "conntrack", "--flush")
		sessionErr := w.Until(ctx, Restarted, "one new session", func(ctx context.Context) (string, error) {
			return "", oneSession(ctx, w, hidden)
		})
		back := time.Since(begin)
		time.Sleep(5 * time.Second)
		result := stream.Stop()
		ok(t, flushErr)
		ok(t, sessionErr)
		t.Logf("there was a session again after %s; %s", back.Round(100*time.Millisecond), result)
		if result.TCPError != nil || result.Longest > 3*time.Second {
			t.Errorf("%s", result)
		}
		_, err = w.Peered(ctx, Restarted)
		ok(t, err)
		usable(t)
	})
	for _, s := range []*Side{open, hidden} {
		t.Run("the agent of "+s.Name+" dies, and the side behind NAT dials again", func(t *testing.T) {
			ok(t, s.KillAgent(ctx))
			ok(t, s.AgentReady(ctx, Restarted))
			begin := time.Now()
			ok(t, w.Until(ctx, Restarted, "one new session", func(ctx context.Context) (string, error) {
				return "", oneSession(ctx, w, hidden)
			}))
			t.Logf("there was a session %s after the agent was ready", time.Since(begin).Round(100*time.Millisecond))
			_, err := w.Peered(ctx, Restarted)
			ok(t, err)
			usable(t)
		})
	}
	pods, err := w.Home.Pods(ctx, shop, nil)
	ok(t, err)
	twin, err = w.Abroad.Twin(ctx, &outs[0])
	ok(t, err)
	if err := lives.Same(LivesOf(append(pods, *twin))); err != nil {
		t.Errorf("pods did not outlive it: %v", err)
	}

	t.Run("the side that can be dialled ends it, and the other hears of it", func(t *testing.T) {
		begin := time.Now()
		_, err := open.Entente(ctx, "unpeer", hidden.Name, "--now", "--forget", "--yes")
		ok(t, err)
		ok(t, w.Until(ctx, Soon, hidden.Name+" to hear of the end", func(ctx context.Context) (string, error) {
			var contracts v1alpha1.ContractList
			if err := hidden.Client.List(ctx, &contracts); err != nil {
				return "", err
			}
			for _, c := range contracts.Items {
				if c.Status.Phase != "Closed" {
					return "contract " + c.Name + " is " + c.Status.Phase, nil
				}
			}
			return "", nil
		}))
		t.Logf("%s heard of the end %s after `unpeer` was typed", hidden.Name, time.Since(begin).Round(100*time.Millisecond))
	})
	ok(t, w.DeleteNamespace(ctx, shop))
	ok(t, w.Unpeer(ctx))
}

// forgetful makes the router forget idle UDP flows after 30 s for the time of a
// test.
func forgetful(ctx context.Context, t *testing.T, w *World) {
	t.Helper()
	const setting = "net.netfilter.nf_conntrack_udp_timeout_stream"
	was, err := w.OnInternet(ctx, "sysctl", "-n", setting)
	ok(t, err)
	_, err = w.OnInternet(ctx, "sysctl", "-w", setting+"=30")
	ok(t, err)
	t.Cleanup(func() {
		if _, err := w.OnInternet(context.WithoutCancel(ctx), "sysctl", "-w", setting+"="+strings.TrimSpace(was)); err != nil {
			t.Errorf("put the router's setting back: %v", err)
		}
	})
}

// oneSession checks that exactly one connection between the agents is up, that
// the cluster behind NAT dialled it, and that both call each other connected.
func oneSession(ctx context.Context, w *World, hidden *Side) error {
	out, err := w.OnInternet(ctx, "conntrack", "--dump", "--proto", "tcp", "--state", "ESTABLISHED", "--orig-port-dst", fmt.Sprint(PeerNodePort))
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	from := "src=" + hidden.Plan.Control().Address.String() + " dst=" + hidden.Other.Plan.Control().Address.String() + " "
	if len(lines) != 1 || !strings.Contains(lines[0], from) {
		return fmt.Errorf("the connections between the agents are %q, want one %s", lines, from)
	}
	return w.Each(ctx, func(ctx context.Context, s *Side) error {
		_, err := s.Condition(ctx, time.Second, v1alpha1.ConditionConnected, metav1.ConditionTrue)
		return err
	})
}
