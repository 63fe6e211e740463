package faults

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
	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/only"
)

// TestConsumerBehindNAT and TestProviderBehindNAT peer two clusters of which only
// one can be dialled. The translation gives each flow a port of its own choice and
// forgets the idle ones after 30 s, as the worse routers do.
func TestConsumerBehindNAT(t *testing.T) {
	only.Matrix(t, "three minutes; the provider is behind NAT with each change")
	behindNAT(t, func(w *e2e.World) *e2e.Side { return w.Home })
}

func TestProviderBehindNAT(t *testing.T) {
	only.Matrix(t, "a minute and a half; package twonodes has pods pass translations of all kinds, and package control agents of which one is dialled")
	behindNAT(t, func(w *e2e.World) *e2e.Side { return w.Abroad })
}

func behindNAT(t *testing.T, which func(*e2e.World) *e2e.Side) {
	t.Helper()
	ctx, w := theStage.On(t)
	e2e.OK(t, w.Unpeer(ctx))
	hidden := which(w)
	open := hidden.Other
	e2e.OK(t, w.NAT(ctx, hidden))
	forgetful(ctx, t, w)

	peerPort := fmt.Sprint(e2e.PeerNodePort)
	for _, address := range []netip.Addr{hidden.Plan.Control().Address, hidden.Plan.Public} {
		if conn, err := open.DialOnNode(ctx, "tcp", net.JoinHostPort(address.String(), peerPort)); err == nil {
			_ = conn.Close()
			t.Fatalf("%s can dial %s, so this tests nothing", open.Name, address)
		}
	}

	begin := time.Now()
	e2e.OK(t, w.JoinBy(ctx, open))
	t.Logf("joined and connected in %s", time.Since(begin).Round(100*time.Millisecond))
	begin = time.Now()
	_, err := w.Home.Entente(ctx, "peer", w.Abroad.Name)
	e2e.OK(t, err)
	_, err = w.Peered(ctx, e2e.Soon)
	e2e.OK(t, err)
	t.Logf("peered in %s", time.Since(begin).Round(100*time.Millisecond))
	e2e.TheContract(ctx, t, w)

	e2e.Offloaded(ctx, t, w, shop)
	inn, innService := e2e.Web(shop, "inn", 1, e2e.AtHome)
	out, outService := e2e.Web(shop, "out", 1, e2e.Away)
	// Streams from abroad come to the echo server, so a Service has to lead there.
	innService.Spec.Ports = append(innService.Spec.Ports,
		corev1.ServicePort{Name: "echo", Port: e2e.EchoPort}, corev1.ServicePort{Name: "echo-udp", Protocol: corev1.ProtocolUDP, Port: e2e.EchoPort})
	e2e.OK(t, w.Home.Create(ctx, inn, innService, out, outService))
	inns, err := w.Home.PodsReady(ctx, e2e.Scheduled, shop, inn.Labels, 1)
	e2e.OK(t, err)
	outs, err := w.Home.PodsReady(ctx, e2e.Scheduled, shop, out.Labels, 1)
	e2e.OK(t, err)
	twin, err := w.Abroad.Twin(ctx, &outs[0])
	e2e.OK(t, err)
	lives := e2e.LivesOf([]corev1.Pod{inns[0], outs[0], *twin})

	t.Run("pods reach each other by name and by address, both ways", func(t *testing.T) {
		e2e.OK(t, w.Home.ReachesAll(ctx, e2e.Soon, shop, inns[0].Name, "http://out:8080/name", outs))
		e2e.OK(t, w.Home.ReachesAll(ctx, e2e.Soon, shop, outs[0].Name, "http://inn:8080/name", inns))
		for from, to := range map[string]string{inns[0].Name: outs[0].Status.PodIP, outs[0].Name: "inn"} {
			text, err := w.Home.InPod(ctx, shop, from, "/tool", "curl", "-t", "20s", "http://"+to+":8080/bytes/5000000")
			e2e.OK(t, err)
			if len(text) != 5000000 {
				t.Errorf("%d bytes came from %s to %s, want 5000000", len(text), to, from)
			}
		}
	})
	usable := func(t *testing.T) {
		t.Helper()
		// An agent that took over has another address, and its virtual node says so in a moment.
		e2e.OK(t, w.Until(ctx, e2e.Soon, "the log of a pod abroad", func(ctx context.Context) (string, error) {
			text, err := w.Home.Kubectl(ctx, "logs", "-n", shop, outs[0].Name)
			switch {
			case err != nil:
				return err.Error(), nil //nolint:nilerr // it is asked again
			case !strings.Contains(text, "GET /name"):
				return "it has no request: " + text, nil
			}
			return "", nil
		}))
		text, err := w.Home.InPod(ctx, shop, outs[0].Name, "/tool", "env")
		e2e.OK(t, err)
		if !strings.Contains(text, "POD_NAME="+outs[0].Name+"\n") {
			t.Errorf("exec printed\n%s", text)
		}
		_, err = w.Home.InPod(ctx, shop, outs[0].Name, "/tool", "exit", "7")
		if failed, is := err.(*e2e.CommandError); !is || failed.Code != 7 { //nolint:errorlint // as InPod returns it
			t.Errorf("a command that ends with 7 ends with %v", err)
		}
	}
	t.Run("logs and exec work", usable)
	t.Run("one side dialled, once, and the other follows its address", func(t *testing.T) {
		e2e.OK(t, oneSession(ctx, w, hidden))
		for _, s := range []struct {
			side *e2e.Side
			want string
		}{
			{hidden, netip.AddrPortFrom(open.Plan.Control().Address, e2e.WireGuardPort).String()},
			{open, hidden.Plan.Public.String() + ":"},
		} {
			out, err := s.side.WireGuard(ctx, "entente0", "endpoints")
			e2e.OK(t, err)
			if fields := strings.Fields(out); len(fields) != 2 || !strings.HasPrefix(fields[1], s.want) {
				t.Errorf("the endpoint that %s sends to is %q, want %s", s.side.Name, fields, s.want)
			}
		}
	})

	// What comes from the open side needs the translation to know the way.
	source, target := inns[0].Status.PodIP, outs[0].Status.PodIP
	if open == w.Abroad {
		peer, err := w.Abroad.Peer(ctx)
		e2e.OK(t, err)
		source = twin.Status.PodIP
		target, err = e2e.Alias(peer, inns[0].Status.PodIP)
		e2e.OK(t, err)
	}
	t.Run("the way in stays open while nothing passes and the fabric hangs", func(t *testing.T) {
		only.Matrix(t, "three quarters of a minute")
		for _, s := range w.Sides() {
			// Its probes would keep the way open too.
			thaw, err := s.Freeze(ctx, e2e.PartNode)
			e2e.OK(t, err)
			defer func() { e2e.OK(t, thaw()) }()
		}
		time.Sleep(40 * time.Second) // less than it takes the kubelet to lose patience
		stream, err := open.StartStream(ctx, source, target)
		e2e.OK(t, err)
		time.Sleep(2 * time.Second)
		result := stream.Stop()
		t.Log(result)
		if result.Lost > 0 || result.TCPError != nil || result.Sent < 200 {
			t.Errorf("%s", result)
		}
	})
	t.Run("the translation is forgotten, and all finds its way again", func(t *testing.T) {
		_, err := w.Peered(ctx, e2e.Restarted)
		e2e.OK(t, err)
		stream, err := open.StartStream(ctx, source, target)
		e2e.OK(t, err)
		time.Sleep(time.Second)
		begin := time.Now()
		_, flushErr := w.OnInternet(ctx, "conntrack", "--flush")
		sessionErr := w.Until(ctx, e2e.Restarted, "one new session", func(ctx context.Context) (string, error) {
			return "", oneSession(ctx, w, hidden)
		})
		back := time.Since(begin)
		time.Sleep(5 * time.Second)
		result := stream.Stop()
		e2e.OK(t, flushErr)
		e2e.OK(t, sessionErr)
		t.Logf("there was a session again after %s; %s", back.Round(100*time.Millisecond), result)
		if result.TCPError != nil || result.Longest > 10*time.Second {
			t.Errorf("%s", result)
		}
		_, err = w.Peered(ctx, e2e.Restarted)
		e2e.OK(t, err)
		usable(t)
	})
	for _, s := range []*e2e.Side{open, hidden} {
		t.Run("the agent of "+s.Name+" dies, and the side behind NAT dials again", func(t *testing.T) {
			e2e.OK(t, s.KillAgent(ctx))
			e2e.OK(t, s.AgentReady(ctx, e2e.Restarted))
			begin := time.Now()
			e2e.OK(t, w.Until(ctx, e2e.Restarted, "one new session", func(ctx context.Context) (string, error) {
				return "", oneSession(ctx, w, hidden)
			}))
			t.Logf("there was a session %s after the agent was ready", time.Since(begin).Round(100*time.Millisecond))
			_, err := w.Peered(ctx, e2e.Restarted)
			e2e.OK(t, err)
			usable(t)
		})
	}
	pods, err := w.Home.Pods(ctx, shop, nil)
	e2e.OK(t, err)
	twin, err = w.Abroad.Twin(ctx, &outs[0])
	e2e.OK(t, err)
	if err := lives.Same(e2e.LivesOf(append(pods, *twin))); err != nil {
		t.Errorf("pods did not outlive it: %v", err)
	}

	t.Run("the side that can be dialled ends it, and the other is notified", func(t *testing.T) {
		begin := time.Now()
		_, err := open.Entente(ctx, "unpeer", hidden.Name, "--now", "--forget", "--yes")
		e2e.OK(t, err)
		e2e.OK(t, w.Until(ctx, e2e.Soon, hidden.Name+" to receive the end", func(ctx context.Context) (string, error) {
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
	e2e.OK(t, w.DeleteNamespace(ctx, shop))
	e2e.OK(t, w.Unpeer(ctx))
}

// forgetful makes the router forget idle UDP flows after 30 s for the time of a
// test.
func forgetful(ctx context.Context, t *testing.T, w *e2e.World) {
	t.Helper()
	const setting = "net.netfilter.nf_conntrack_udp_timeout_stream"
	was, err := w.OnInternet(ctx, "sysctl", "-n", setting)
	e2e.OK(t, err)
	_, err = w.OnInternet(ctx, "sysctl", "-w", setting+"=30")
	e2e.OK(t, err)
	t.Cleanup(func() {
		if _, err := w.OnInternet(context.WithoutCancel(ctx), "sysctl", "-w", setting+"="+strings.TrimSpace(was)); err != nil {
			t.Errorf("put the router's setting back: %v", err)
		}
	})
}

// oneSession checks that exactly one connection between the agents is up, that
// the cluster behind NAT dialled it, and that both call each other connected.
func oneSession(ctx context.Context, w *e2e.World, hidden *e2e.Side) error {
	out, err := w.OnInternet(ctx, "conntrack", "--dump", "--proto", "tcp", "--state", "ESTABLISHED", "--orig-port-dst", fmt.Sprint(e2e.PeerNodePort))
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	from := "src=" + hidden.Plan.Control().Address.String() + " dst=" + hidden.Other.Plan.Control().Address.String() + " "
	if len(lines) != 1 || !strings.Contains(lines[0], from) {
		return fmt.Errorf("the connections between the agents are %q, want one %s", lines, from)
	}
	return w.Each(ctx, func(ctx context.Context, s *e2e.Side) error {
		_, err := s.Condition(ctx, time.Second, v1alpha1.ConditionConnected, metav1.ConditionTrue)
		return err
	})
}
