package paths

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/eventually"
	"github.com/entente-dev/entente/integration/lab"
	"github.com/entente-dev/entente/integration/only"
)

const (
	// yard is another namespace of rome, dock one of milan.
	yard = "yard"
	dock = "dock"
	// shut is for how long nothing may pass that has to be closed.
	shut = 6 * time.Second
)

// abroad is a pod of rome in another cluster, with its Service.
type abroad struct {
	side    *e2e.Side
	service string
	// twin is the pod as the provider has it.
	twin *corev1.Pod
}

// TestPodsAtTwoProvidersReachEachOtherThroughTheirHome has rome run pods of a namespace in milan and in
// oslo. They reach each other only while all three clusters say so: through rome, and directly once milan and
// oslo peer.
func TestPodsAtTwoProvidersReachEachOtherThroughTheirHome(t *testing.T) {
	only.Matrix(t, "four minutes; package tunnel has packets pass through a third cluster, and internal/controller what all three say")
	ctx, w := onStage(t)
	e2e.OK(t, w.uses(ctx, w.rome, w.milan))
	e2e.OK(t, w.uses(ctx, w.rome, w.oslo))
	for _, namespace := range []string{shop, yard} {
		e2e.Offloaded(ctx, t, w.World, namespace)
	}
	a := w.runs(ctx, t, shop, "a", w.rome, w.milan)
	c := w.runs(ctx, t, shop, "c", w.rome, w.oslo)
	stranger := w.runs(ctx, t, yard, "stranger", w.rome, w.milan)

	t.Run("off by default", func(t *testing.T) { w.nothingPasses(ctx, t, a, c) })
	t.Run("all three have to say so", func(t *testing.T) { w.agreeInTurn(ctx, t, a, c) })
	t.Run("what is open is open, and nothing else", func(t *testing.T) { w.opensNothingElse(ctx, t, a, c, stranger) })
	for _, side := range w.Sides() {
		t.Run(side.Name+" takes its word back", func(t *testing.T) { w.endsAndComesBack(ctx, t, a, c, side) })
	}
	t.Run("the two providers peer", func(t *testing.T) { w.thePeersPeer(ctx, t, a, c, stranger) })
}

// runs has a cluster run a pod in another one, whose Service opens the ports of the web server and of the echo
// server; the one called a has the web server's alone.
func (w *world) runs(ctx context.Context, t *testing.T, namespace, name string, home, provider *e2e.Side) abroad {
	t.Helper()
	d, service := e2e.Web(namespace, name, 1, e2e.Away)
	e2e.OK(t, in(ctx, provider, d))
	service.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyPreferDualStack)
	if name != "a" {
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: "echo", Port: e2e.EchoPort})
	}
	e2e.OK(t, home.Create(ctx, d, service))
	return abroad{provider, name, w.twinOf(ctx, t, home, provider, d)}
}

// twinOf is the pod of a Deployment as the provider has it.
func (w *world) twinOf(ctx context.Context, t *testing.T, home, provider *e2e.Side, d *appsv1.Deployment) *corev1.Pod {
	t.Helper()
	pods, err := home.PodsReady(ctx, e2e.Scheduled, d.Namespace, d.Labels, 1)
	e2e.OK(t, err)
	twin, err := provider.Twin(ctx, &pods[0])
	e2e.OK(t, err)
	if len(twin.Status.PodIPs) != 2 {
		t.Fatalf("pod %s in %s has the addresses %v, want one of each family", twin.Name, provider.Name, twin.Status.PodIPs)
	}
	return twin
}

// asks has a pod, as its provider has it, ask a URL once. It needs no session with the pod's home.
func (a abroad) asks(ctx context.Context, url string, args ...string) (string, error) {
	return a.side.InPod(ctx, a.twin.Namespace, a.twin.Name, append(append([]string{"/tool", "curl", "-t", "3s"}, args...), url)...)
}

// names are the addresses by which the provider of a pod knows those of another one: what its Service
// leads to there.
func (a abroad) names(ctx context.Context, other abroad) ([]string, error) {
	return a.side.ReadyEndpoints(ctx, a.twin.Namespace, other.service)
}

// reaches waits until a pod reaches another one by its Service's name and addresses, in both families.
func (w *world) reaches(ctx context.Context, a, other abroad) error {
	what := fmt.Sprintf("the pod in %s to reach that in %s", a.side.Name, other.side.Name)
	return w.Until(ctx, e2e.Restarted, what, func(ctx context.Context) (string, error) {
		names, err := a.names(ctx, other)
		if err != nil {
			return "", err
		}
		if len(names) != 2 {
			return fmt.Sprintf("Service %s leads to %v there", other.service, names), nil
		}
		for _, host := range append(names, other.service) {
			answer, err := a.asks(ctx, "http://"+net.JoinHostPort(host, fmt.Sprint(e2e.WebPort))+"/name")
			if err != nil {
				return "", err
			}
			if !strings.HasPrefix(answer, other.service+"-") {
				return fmt.Sprintf("%s answers %q", host, answer), nil
			}
		}
		return "", nil
	})
}

// closed waits until the Service of a pod leads nowhere at the provider of another one, and checks that
// nothing answers at addresses.
func (w *world) closed(ctx context.Context, a, other abroad, names ...string) error {
	if err := w.Until(ctx, e2e.Soon, fmt.Sprintf("Service %s to lead nowhere in %s", other.service, a.side.Name), func(ctx context.Context) (string, error) {
		now, err := a.names(ctx, other)
		if err == nil && len(now) > 0 {
			return fmt.Sprintf("it leads to %v", now), nil
		}
		return "", err
	}); err != nil {
		return err
	}
	for _, host := range append(names, other.service) {
		if answer, err := a.asks(ctx, "http://"+net.JoinHostPort(host, fmt.Sprint(e2e.WebPort))+"/name"); err == nil {
			return fmt.Errorf("the pod in %s is answered at %s: %q", a.side.Name, host, answer)
		}
	}
	return nil
}

// plans waits until a cluster says of the way from or to another one through a third what it is to say.
func (w *world) plans(ctx context.Context, side, other *e2e.Side, third, want string) error {
	return w.Until(ctx, e2e.Soon, fmt.Sprintf("%s to say %q of %s and %s", side.Name, want, other.Name, third), func(ctx context.Context) (string, error) {
		text, err := side.Entente(ctx, "network", "plan", other.Name)
		if err != nil {
			return "", err
		}
		for line := range strings.Lines(text) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == third && strings.Contains(strings.Join(f, " "), want) {
				return "", nil
			}
		}
		return text, nil
	})
}

// nothingPasses checks that pods at two providers do not reach each other without consent.
func (w *world) nothingPasses(ctx context.Context, t *testing.T, a, c abroad) {
	e2e.OK(t, w.closed(ctx, a, c))
	e2e.OK(t, w.closed(ctx, c, a))
	for _, other := range []*e2e.Side{w.milan, w.oslo} {
		text, err := w.rome.Entente(ctx, "network", "plan", other.Name)
		e2e.OK(t, err)
		if strings.Contains(text, "Reaches through") || strings.Contains(text, "Reached through") {
			t.Errorf("the plan of the network with %s has another cluster in it:\n%s", other.Name, text)
		}
	}
}

// passTo has rome say of one of the two that it passes packets on to the other, or no longer.
func (w *world) passTo(ctx context.Context, peer, third *e2e.Side, yes bool) error {
	return w.says(ctx, "passTo", w.rome, peer, third, yes)
}

// through makes one of the two declare that it reaches the other through rome, or no longer.
func (w *world) through(ctx context.Context, side, third *e2e.Side, yes bool) error {
	return w.says(ctx, "through", side, w.rome, third, yes)
}

func (w *world) says(ctx context.Context, word string, side, other, third *e2e.Side, yes bool) error {
	id, err := third.ID(ctx)
	if err != nil {
		return err
	}
	list := []string{}
	if yes {
		list = append(list, id)
	}
	return patch(ctx, side, other, map[string]any{"transit": map[string]any{word: list}})
}

// agreeInTurn makes the three agree one after the other. Rome reports each time what is missing,
// and nothing passes before all have agreed.
func (w *world) agreeInTurn(ctx context.Context, t *testing.T, a, c abroad) {
	e2e.OK(t, w.passTo(ctx, w.milan, w.oslo, true))
	e2e.OK(t, w.plans(ctx, w.rome, w.milan, "oslo", "does not pass: spec.transit.passTo of oslo here does not name the peer"))
	e2e.OK(t, w.passTo(ctx, w.oslo, w.milan, true))
	e2e.OK(t, w.plans(ctx, w.rome, w.milan, "oslo", "does not pass: the peer does not agree"))
	e2e.OK(t, w.closed(ctx, a, c))
	e2e.OK(t, w.through(ctx, w.milan, w.oslo, true))
	e2e.OK(t, w.plans(ctx, w.rome, w.milan, "oslo", "does not pass: oslo does not agree"))
	third, err := w.oslo.ID(ctx)
	e2e.OK(t, err)
	e2e.OK(t, w.plans(ctx, w.milan, w.rome, third, "does not pass: the peer has announced no address there"))
	time.Sleep(shut) // it took less until they reached each other, had it been enough
	e2e.OK(t, w.closed(ctx, a, c))
	e2e.OK(t, w.closed(ctx, c, a))

	begin := time.Now()
	e2e.OK(t, w.through(ctx, w.oslo, w.milan, true))
	e2e.OK(t, w.reaches(ctx, a, c))
	e2e.OK(t, w.reaches(ctx, c, a))
	t.Logf("they reach each other %s after the last one agreed", time.Since(begin).Round(100*time.Millisecond))
	e2e.OK(t, w.plans(ctx, w.rome, w.milan, "oslo", "passes: 2 of 2 addresses there have an alias"))
	e2e.OK(t, w.plans(ctx, w.milan, w.rome, third, "passes: 2 of 2 addresses there have an alias"))
	for _, way := range [][2]abroad{{a, c}, {c, a}} {
		text, err := way[0].asks(ctx, fmt.Sprintf("http://%s:%d/bytes/2000000", way[1].service, e2e.WebPort), "-t", "30s")
		e2e.OK(t, err)
		if len(text) != 2000000 {
			t.Errorf("%d bytes came from %s, want 2000000", len(text), way[1].side.Name)
		}
	}
}

// opensNothingElse checks that ports which no Service opens, pods of another namespace and of the provider, and
// its nodes, do not reach what the pods of the namespace reach.
func (w *world) opensNothingElse(ctx context.Context, t *testing.T, a, c, stranger abroad) {
	names, err := a.names(ctx, c)
	e2e.OK(t, err)
	back, err := c.names(ctx, a)
	e2e.OK(t, err)
	own := abroad{side: w.milan, twin: e2e.WebPod(dock, "own", nil)}
	e2e.OK(t, w.milan.CreateNamespace(ctx, dock))
	t.Cleanup(func() {
		_, err := w.milan.Kubectl(context.WithoutCancel(ctx), "delete", "namespace", dock, "--ignore-not-found", "--timeout=2m")
		e2e.OK(t, err)
	})
	e2e.OK(t, w.milan.Create(ctx, own.twin))
	e2e.OK(t, w.Until(ctx, e2e.Scheduled, "a pod of milan to be ready", func(ctx context.Context) (string, error) {
		if err := w.milan.Client.Get(ctx, ctrlclient.ObjectKeyFromObject(own.twin), own.twin); err != nil {
			return "", err
		}
		if !e2e.PodReady(own.twin) {
			return e2e.PodText(own.twin), nil
		}
		return "", nil
	}))
	for _, host := range names {
		web := "http://" + net.JoinHostPort(host, fmt.Sprint(e2e.WebPort)) + "/name"
		for who, pod := range map[string]abroad{"a pod of another namespace": stranger, "a pod of the provider": own} {
			if answer, err := pod.asks(ctx, web); err == nil {
				t.Errorf("%s is answered at %s: %q", who, host, answer)
			}
		}
		if answer, err := w.milan.OnNode(ctx, "curl", "--silent", "--fail", "--noproxy", "*", "--max-time", "3", web); err == nil {
			t.Errorf("a process on the node is answered at %s: %q", host, answer)
		}
		// So it was not closed because nothing was open.
		if _, err := a.side.InPod(ctx, a.twin.Namespace, a.twin.Name, "/tool", "echo", "tcp", net.JoinHostPort(host, fmt.Sprint(e2e.EchoPort)), "hello"); err != nil {
			t.Errorf("the echo port, which Service c opens, is closed at %s: %v", host, err)
		}
	}
	for _, host := range back {
		if text, err := c.side.InPod(ctx, c.twin.Namespace, c.twin.Name, "/tool", "echo", "tcp", net.JoinHostPort(host, fmt.Sprint(e2e.EchoPort)), "hello"); err == nil {
			t.Errorf("the echo port, which Service a does not open, answers at %s: %q", host, text)
		}
	}
}

// endsAndComesBack has one of the three take its word back: what is open ends with that, too. Then it
// gives it again.
func (w *world) endsAndComesBack(ctx context.Context, t *testing.T, a, c abroad, side *e2e.Side) {
	word, other, third := "through", w.rome, w.milan
	switch side {
	case w.rome:
		word, other, third = "passTo", w.milan, w.oslo
	case w.milan:
		third = w.oslo
	}
	names, err := a.names(ctx, c)
	e2e.OK(t, err)
	conn, err := w.milan.DialFromPod(ctx, a.twin.Status.PodIP, "tcp", net.JoinHostPort(names[0], fmt.Sprint(e2e.EchoPort)))
	e2e.OK(t, err)
	defer func() { _ = conn.Close() }()
	e2e.OK(t, echoes(conn))
	again := func(ctx context.Context) error { return w.says(ctx, word, side, other, third, true) }
	t.Cleanup(func() { e2e.OK(t, again(context.WithoutCancel(ctx))) })
	e2e.OK(t, w.says(ctx, word, side, other, third, false))
	begin := time.Now()
	if err := eventually.Is(ctx, e2e.Soon, "the connection to end", func(context.Context) error {
		if echoes(conn) == nil {
			return errors.New("it continues")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	t.Logf("a connection through rome ended %s after %s took its word back", time.Since(begin).Round(100*time.Millisecond), side.Name)
	e2e.OK(t, w.closed(ctx, a, c, names...))
	e2e.OK(t, w.closed(ctx, c, a))
	e2e.OK(t, again(ctx))
	e2e.OK(t, w.reaches(ctx, a, c))
	e2e.OK(t, w.reaches(ctx, c, a))
}

// echoes checks that what is sent on a connection to an echo server comes back.
func echoes(conn net.Conn) error {
	const text = "are you there?"
	if err := conn.SetDeadline(time.Now().Add(shut)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte(text)); err != nil {
		return err
	}
	got := make([]byte, len(text))
	for n := 0; n < len(got); {
		k, err := conn.Read(got[n:])
		if err != nil {
			return err
		}
		n += k
	}
	return nil
}

// thePeersPeer makes milan and oslo peer. From then on rome's pods reach each other directly, also while rome is cut
// off, and what is open is the same; connections that began through rome go on through it. When
// the path between milan and oslo is lost, or one takes its word back, it is as before they peered.
func (w *world) thePeersPeer(ctx context.Context, t *testing.T, a, c, stranger abroad) {
	through, err := a.names(ctx, c)
	e2e.OK(t, err)
	old, err := w.milan.DialFromPod(ctx, a.twin.Status.PodIP, "tcp", net.JoinHostPort(through[0], fmt.Sprint(e2e.EchoPort)))
	e2e.OK(t, err)
	defer func() { _ = old.Close() }()
	e2e.OK(t, echoes(old))
	begin := time.Now()
	e2e.OK(t, w.uses(ctx, w.milan, w.oslo))
	e2e.OK(t, w.leadsDirectly(ctx, a, c, true))
	e2e.OK(t, w.leadsDirectly(ctx, c, a, true))
	t.Logf("their Services lead there directly %s after milan began to peer with oslo", time.Since(begin).Round(100*time.Millisecond))
	e2e.OK(t, w.reaches(ctx, a, c))
	e2e.OK(t, w.reaches(ctx, c, a))
	e2e.OK(t, echoes(old))
	t.Run("opens nothing else", func(t *testing.T) { w.opensNothingElse(ctx, t, a, c, stranger) })
	t.Run("without their home", func(t *testing.T) { w.withoutHome(ctx, t, a, c, through) })
	t.Run("without the direct path", func(t *testing.T) { w.withoutPath(ctx, t, a, c) })

	direct, err := a.names(ctx, c)
	e2e.OK(t, err)
	e2e.OK(t, echoes(old))
	_, err = w.milan.Entente(ctx, "unpeer", w.oslo.Name, "--now", "--yes")
	e2e.OK(t, err)
	e2e.OK(t, w.leadsDirectly(ctx, a, c, false))
	e2e.OK(t, w.leadsDirectly(ctx, c, a, false))
	e2e.OK(t, w.reaches(ctx, a, c))
	e2e.OK(t, w.reaches(ctx, c, a))
	e2e.OK(t, w.through(ctx, w.oslo, w.milan, false))
	e2e.OK(t, w.closed(ctx, a, c, slices.Concat(direct, through)...))
	e2e.OK(t, w.closed(ctx, c, a))
}

// leadsDirectly waits until the Service of a pod leads to it, at the provider of another one, in the tunnel between the
// two providers, or through their home.
func (w *world) leadsDirectly(ctx context.Context, a, other abroad, want bool) error {
	what := fmt.Sprintf("Service %s to lead directly to %s in %s: %v", other.service, other.side.Name, a.side.Name, want)
	return w.Until(ctx, e2e.Restarted, what, func(ctx context.Context) (string, error) {
		names, err := a.names(ctx, other)
		if err != nil {
			return "", err
		}
		fc, err := a.side.Knows(ctx, other.side)
		if err != nil {
			return "", err
		}
		direct := 0
		for _, name := range names {
			host := netip.MustParseAddr(name)
			for _, known := range fc.Status.Aliases {
				if p, err := netip.ParsePrefix(known.Alias); err == nil && p.Contains(host) {
					direct++
				}
			}
		}
		if len(names) != 2 || want && direct != 2 || !want && direct != 0 {
			return fmt.Sprintf("it leads to %v, %d of them direct", names, direct), nil
		}
		return "", nil
	})
}

// withoutHome cuts rome off: its pods keep reaching each other directly, and no longer through it.
func (w *world) withoutHome(ctx context.Context, t *testing.T, a, c abroad, through []string) {
	for _, other := range []*e2e.Side{w.milan, w.oslo} {
		_, err := w.Lab.Fault(ctx, lab.FaultRequest{Kind: "cut", A: w.rome.Plan.Name, B: other.Plan.Name})
		e2e.OK(t, err)
	}
	t.Cleanup(func() { e2e.OK(t, w.Heal(context.WithoutCancel(ctx))) })
	e2e.OK(t, w.reaches(ctx, a, c))
	e2e.OK(t, w.reaches(ctx, c, a))
	for _, host := range through {
		if answer, err := a.asks(ctx, fmt.Sprintf("http://%s/name", net.JoinHostPort(host, fmt.Sprint(e2e.WebPort)))); err == nil {
			t.Errorf("while rome is cut off its pod in milan is answered at %s: %q", host, answer)
		}
	}
	time.Sleep(shut) // it is noticed that rome is away
	e2e.OK(t, w.leadsDirectly(ctx, a, c, true))
	e2e.OK(t, w.reaches(ctx, a, c))
}

// withoutPath cuts the path between milan and oslo: rome's pods reach each other through rome until it is back.
func (w *world) withoutPath(ctx context.Context, t *testing.T, a, c abroad) {
	e2e.OK(t, w.reaches(ctx, a, c))
	_, err := w.Lab.Fault(ctx, lab.FaultRequest{Kind: "cut", A: w.milan.Plan.Name, B: w.oslo.Plan.Name})
	e2e.OK(t, err)
	t.Cleanup(func() { e2e.OK(t, w.Heal(context.WithoutCancel(ctx))) })
	begin := time.Now()
	e2e.OK(t, w.leadsDirectly(ctx, a, c, false))
	e2e.OK(t, w.leadsDirectly(ctx, c, a, false))
	t.Logf("their Services lead through rome %s after the path between milan and oslo was cut", time.Since(begin).Round(100*time.Millisecond))
	e2e.OK(t, w.reaches(ctx, a, c))
	e2e.OK(t, w.reaches(ctx, c, a))
	e2e.OK(t, w.Heal(ctx))
	e2e.OK(t, w.leadsDirectly(ctx, a, c, true))
	e2e.OK(t, w.reaches(ctx, a, c))
}
