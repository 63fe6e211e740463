package twonodes

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/lab"
	"github.com/entente-dev/entente/integration/only"
)

// away is the namespace of these tests.
const away = "away"

// TestWhereNothingButUDPPasses peers two clusters between which all but WireGuard's UDP is
// lost. It is the last test, by the name of its file: it ends the peering of those before.
func TestWhereNothingButUDPPasses(t *testing.T) {
	only.Matrix(t, "two minutes; the sample of package matrix has peerings that are in-band")
	ctx, s := onStage(t)
	w := s.World
	ok(t, w.DeleteNamespace(ctx, shop))
	ok(t, w.Unpeer(ctx))
	// The API server checks kubelets.
	_, err := w.Home.Helm(ctx, append(w.InstallArgs(w.Home), "--set", "agent.kubeletCertificate=Cluster")...)
	ok(t, err)
	e2e.OnlyUDP(ctx, t, w, lab.DualStack)

	t.Run("with access to both clusters", func(t *testing.T) {
		begin := time.Now()
		text, err := w.Home.Entente(ctx, "peer", "--in-band", "--remote-kubeconfig", w.Abroad.Kubeconfig)
		ok(t, err)
		t.Logf("peered in %s:\n%s", time.Since(begin).Round(100*time.Millisecond), text)
		_, err = w.Peered(ctx, e2e.Soon)
		ok(t, err)
		e2e.AreInBand(ctx, t, w)
		inn, out := runsAbroad(ctx, t, w)
		relaysAreClosed(ctx, t, w, inn)
		keysAreReplaced(ctx, t, w, inn, out)
		survives(ctx, t, w, inn, out)
		ok(t, w.DeleteNamespace(ctx, away))
		text, err = w.Home.Entente(ctx, "unpeer", "--remote-kubeconfig", w.Abroad.Kubeconfig, "--forget", "--yes")
		ok(t, err)
		t.Logf("unpeered:\n%s", text)
		e2e.NoRelaysLeft(ctx, t, w)
	})

	t.Run("with each other's files", func(t *testing.T) {
		ok(t, w.DeleteNamespace(ctx, away)) // if it failed before
		ok(t, w.Unpeer(ctx))
		files := parametersOf(ctx, t, w)
		// The first administrator waits for the second.
		first := make(chan error, 1)
		go func() {
			_, err := w.Abroad.Entente(ctx, "network", "connect", "--in-band", "-f", files[w.Home])
			first <- err
		}()
		ok(t, w.Until(ctx, e2e.Soon, "the side that is first to say what it waits for", func(ctx context.Context) (string, error) {
			peer, err := w.Abroad.Peer(ctx)
			if err != nil || peer == nil {
				return "it knows nobody", err
			}
			for _, c := range peer.Status.Conditions {
				if c.Type == v1alpha1.ConditionInBand && c.Reason == "AwaitingPeer" && strings.Contains(c.Message, "administrator") {
					return "", nil
				}
			}
			return fmt.Sprint(peer.Status.Conditions), nil
		}))
		text, err := w.Home.Entente(ctx, "network", "connect", "--in-band", "-f", files[w.Abroad])
		ok(t, err)
		t.Logf("connected:\n%s", text)
		ok(t, <-first)
		e2e.AreInBand(ctx, t, w)
		carriesThePeerAPIAlone(ctx, t, w)
		meetByFilesAgain(ctx, t, w, files)

		_, err = w.Home.Entente(ctx, "peer", w.Abroad.Name)
		ok(t, err)
		_, err = w.Peered(ctx, e2e.Soon)
		ok(t, err)
		e2e.AreInBand(ctx, t, w)
		_, err = w.Home.Entente(ctx, "network", "disconnect", w.Abroad.Name)
		ok(t, err)
		e2e.AreInBand(ctx, t, w) // the session needs no contract
		carriesThePeerAPIAlone(ctx, t, w)
		ok(t, w.Unpeer(ctx))
		e2e.NoRelaysLeft(ctx, t, w)
	})
}

// runsAbroad runs a pod abroad, which is reached by its Service, keeps logging, and runs commands,
// and returns one at home, and it.
func runsAbroad(ctx context.Context, t *testing.T, w *e2e.World) (atHome, abroad *corev1.Pod) {
	t.Helper()
	ok(t, w.Offload(ctx, away))
	inn, innService := e2e.Web(away, "inn", 1, e2e.AtHome)
	out, outService := e2e.Web(away, "out", 1, e2e.Away)
	// Both on nodes that live on.
	inn.Spec.Template.Spec.NodeSelector = map[string]string{steady: "yes"}
	_, err := w.Abroad.Kubectl(ctx, "cordon", second(w.Abroad))
	ok(t, err)
	defer func() {
		_, err := w.Abroad.Kubectl(context.WithoutCancel(ctx), "uncordon", second(w.Abroad))
		ok(t, err)
	}()
	ok(t, w.Home.Create(ctx, inn, innService, out, outService))
	inns, err := w.Home.PodsReady(ctx, e2e.Scheduled, away, inn.Labels, 1)
	ok(t, err)
	outs, err := w.Home.PodsReady(ctx, e2e.Scheduled, away, out.Labels, 1)
	ok(t, err)
	ok(t, w.Home.ReachesAll(ctx, e2e.Soon, away, inns[0].Name, "http://out:8080/name", outs))
	ok(t, takesCommands(ctx, w, &outs[0]))
	followed, stop := context.WithCancel(ctx)
	defer stop()
	kubectl, err := lab.BinaryPath(ctx, "kubectl", func(string) {})
	ok(t, err)
	cmd := exec.CommandContext(followed, kubectl, "--kubeconfig", w.Home.Kubeconfig, "-n", away, "logs", "-f", outs[0].Name)
	lines, err := cmd.StdoutPipe()
	ok(t, err)
	ok(t, cmd.Start())
	said := make(chan struct{})
	go func() {
		for scan := bufio.NewScanner(lines); scan.Scan(); {
			if strings.Contains(scan.Text(), "/later") {
				close(said)
				return
			}
		}
	}()
	ok(t, w.Until(ctx, e2e.Soon, "the log to have what the pod abroad was asked", func(ctx context.Context) (string, error) {
		_, _ = w.Home.Answers(ctx, away, inns[0].Name, 1, "http://out:8080/later")
		select {
		case <-said:
			return "", nil
		default:
			return "it has not", nil
		}
	}))
	stop()
	_ = cmd.Wait()
	return &inns[0], &outs[0]
}

// takesCommands checks that a pod abroad takes commands, which pass the session between the agents.
func takesCommands(ctx context.Context, w *e2e.World, abroad *corev1.Pod) error {
	return w.Until(ctx, e2e.Restarted, "exec in "+abroad.Name, func(ctx context.Context) (string, error) {
		text, err := w.Home.InPod(ctx, away, abroad.Name, "/tool", "curl", "http://localhost:8080/name")
		if err == nil && !strings.Contains(text, abroad.Name) {
			return "it printed " + text, nil
		}
		return "", err
	})
}

// relaysAreClosed checks that a caller without a key gets no response from a relay, nor from the
// agent.
func relaysAreClosed(ctx context.Context, t *testing.T, w *e2e.World, pod *corev1.Pod) {
	t.Helper()
	agent, err := w.Home.AgentPod(ctx)
	ok(t, err)
	var nodes v1alpha1.FabricNodeList
	ok(t, w.Home.Client.List(ctx, &nodes))
	targets := []string{fmt.Sprintf("%s:%d", agent.Status.PodIP, e2e.RelayPort)}
	for i := range nodes.Items {
		targets = append(targets, nodes.Items[i].Status.Relays...)
	}
	if len(targets) < 3 {
		t.Errorf("of relays and agent are known %q only", targets)
	}
	for _, at := range targets {
		if text, err := w.Home.InPod(ctx, away, pod.Name, "/tool", "curl", "http://"+at+"/"); err == nil {
			t.Errorf("a pod is answered at %s: %q", at, text)
		}
	}
	// Another cluster sees no port at all, whatever the border lets pass.
	for i := range nodes.Items {
		for _, at := range nodes.Items[i].Status.Relays {
			if conn, err := w.DialOnInternet(ctx, "tcp", at); err == nil {
				_ = conn.Close()
				t.Errorf("the relay at %s can be seen from the internet", at)
			}
		}
	}
}

// keysAreReplaced replaces the preshared key, and then the WireGuard keys of nodes, for which there are handshakes with
// it, while pods talk.
func keysAreReplaced(ctx context.Context, t *testing.T, w *e2e.World, inn, out *corev1.Pod) {
	t.Helper()
	stream, err := w.Home.StartStream(ctx, inn.Status.PodIP, out.Status.PodIP)
	ok(t, err)
	begin := time.Now()
	_, presharedErr := w.Home.Entente(ctx, "network", "rotate", w.Abroad.Name)
	took := time.Since(begin)
	_, nodesErr := w.Abroad.Entente(ctx, "network", "rotate", "--nodes")
	time.Sleep(time.Second)
	result := stream.Stop()
	ok(t, presharedErr)
	ok(t, nodesErr)
	t.Logf("the preshared key was replaced after %s, then the nodes' keys: %s", took.Round(100*time.Millisecond), result)
	if result.Lost > 0 || result.TCPError != nil {
		t.Errorf("packets were lost: %s", result)
	}
	useKey(ctx, t, w, 1)
}

// useKey waits until both sides use the preshared key with a number, and no other.
func useKey(ctx context.Context, t *testing.T, w *e2e.World, number int64) {
	t.Helper()
	for _, side := range w.Sides() {
		ok(t, w.Until(ctx, e2e.Restarted, fmt.Sprintf("%s to use key no. %d", side.Name, number), func(ctx context.Context) (string, error) {
			peer, err := side.Peer(ctx)
			if err != nil || peer == nil || peer.Status.PresharedKey == nil {
				return "it has none", err
			}
			var secret corev1.Secret
			if err := side.Client.Get(ctx, fabricSecret, &secret); err != nil {
				return "", err
			}
			if n := peer.Status.PresharedKey.Number; n != number || len(secret.Data) != 2 {
				return fmt.Sprintf("it uses no. %d and has %d entries", n, len(secret.Data)), nil
			}
			return "", nil
		}))
	}
}

var fabricSecret = ctrlclient.ObjectKey{Namespace: e2e.SystemNamespace, Name: v1alpha1.FabricSecret}

// meetByFilesAgain has the side abroad lose the key that both agreed on: its keys are replaced by others that nobody
// has, while it has no agent and its fabrics begin again. Both administrators connect the other by its file again.
func meetByFilesAgain(ctx context.Context, t *testing.T, w *e2e.World, files map[*e2e.Side]string) {
	t.Helper()
	_, err := w.Home.Entente(ctx, "network", "rotate", w.Abroad.Name)
	ok(t, err)
	useKey(ctx, t, w, 1)
	agent := func(replicas string) {
		t.Helper()
		_, err := w.Abroad.Kubectl(ctx, "-n", e2e.SystemNamespace, "scale", "deployment/entente-agent", "--replicas", replicas)
		ok(t, err)
	}
	agent("0")
	t.Cleanup(func() { agent("1") })
	var secret corev1.Secret
	ok(t, w.Abroad.Client.Get(ctx, fabricSecret, &secret))
	for name, value := range secret.Data {
		if len(value) == 32 {
			secret.Data[name], secret.Data[name+v1alpha1.FabricKeyNumber] = bytes.Repeat([]byte{1}, 32), []byte("9")
		}
	}
	ok(t, w.Abroad.Client.Update(ctx, &secret))
	_, err = w.Abroad.Kubectl(ctx, "-n", e2e.SystemNamespace, "rollout", "restart", "daemonset/entente-fabric")
	ok(t, err)
	_, err = w.Abroad.Kubectl(ctx, "-n", e2e.SystemNamespace, "rollout", "status", "daemonset/entente-fabric", "--timeout", "2m")
	ok(t, err)
	// What WireGuard agreed on with the former key is good for three minutes.
	_, err = w.Home.Condition(ctx, 2*e2e.Scheduled, v1alpha1.ConditionInBand, metav1.ConditionFalse)
	ok(t, err)
	agent("1")
	ok(t, w.Abroad.AgentReady(ctx, e2e.Restarted))
	for _, side := range w.Sides() {
		_, err := side.Condition(ctx, e2e.Scheduled, v1alpha1.ConditionInBand, metav1.ConditionFalse)
		ok(t, err)
		_, err = side.Condition(ctx, e2e.Scheduled, v1alpha1.ConditionConnected, metav1.ConditionFalse)
		ok(t, err)
	}
	begin := time.Now()
	first := make(chan error, 1)
	go func() {
		_, err := w.Abroad.Entente(ctx, "network", "connect", "--in-band", "-f", files[w.Home])
		first <- err
	}()
	_, err = w.Home.Entente(ctx, "network", "connect", "--in-band", "-f", files[w.Abroad])
	ok(t, err)
	ok(t, <-first)
	t.Logf("connected again after a loss of keys after %s", time.Since(begin).Round(100*time.Millisecond))
	e2e.AreInBand(ctx, t, w)
	useKey(ctx, t, w, 1)
}

// survives kills what the session runs through: the fabric on each node, both agents, and a
// gateway with its node. The session comes back, and pods abroad are reached.
func survives(ctx context.Context, t *testing.T, w *e2e.World, inn, out *corev1.Pod) {
	t.Helper()
	works := func(what string, limit time.Duration) {
		t.Helper()
		begin := time.Now()
		for _, side := range w.Sides() {
			_, err := side.Condition(ctx, limit, v1alpha1.ConditionConnected, metav1.ConditionTrue)
			ok(t, err)
		}
		ok(t, takesCommands(ctx, w, out))
		// By address: with a node died one of two DNS servers.
		ok(t, w.Home.ReachesAll(ctx, limit, away, inn.Name, "http://"+out.Status.PodIP+":8080/name", []corev1.Pod{*out}))
		t.Logf("%s: all works again after %s", what, time.Since(begin).Round(100*time.Millisecond))
	}
	ok(t, w.Home.Kill(ctx, e2e.PartNode))
	ok(t, w.Abroad.Kill(ctx, e2e.PartNode))
	works("the fabrics of both first nodes were killed", e2e.Restarted)
	again := newSession(ctx, t, w)
	ok(t, w.Home.Kill(ctx, e2e.PartAgent))
	ok(t, w.Abroad.Kill(ctx, e2e.PartAgent))
	again()
	works("both agents were killed", e2e.Restarted)
	for _, side := range w.Sides() {
		// The agent's node has to live, so the session is made to run by the other.
		first, other := side.Node(), second(side)
		ok(t, label(ctx, side, other, "true"))
		t.Cleanup(func() {
			for _, node := range []string{first, other} {
				ok(t, label(context.WithoutCancel(ctx), side, node, ""))
			}
		})
		ok(t, areGateways(ctx, w, side, other))
		ok(t, reaches(ctx, w, side, other))
		time.Sleep(2 * time.Second) // until the relays of the other one are gone
		works("node "+other+" became the only gateway", e2e.Restarted)
		ok(t, label(ctx, side, first, "true"))
		ok(t, areGateways(ctx, w, side, first, other))
		ok(t, reaches(ctx, w, side, first))
		again = newSession(ctx, t, w)
		stopErr := w.Lab.StopNode(ctx, other)
		t.Cleanup(func() { ok(t, w.Lab.StartNode(context.WithoutCancel(ctx), other)) }) // one that runs is left alone
		ok(t, stopErr)
		again()
		works("node "+other+" was stopped", e2e.Restarted)
		ok(t, w.Lab.StartNode(ctx, other))
		ok(t, reaches(ctx, w, side, other))
	}
	works("both nodes came back", e2e.Restarted)
}

// newSession returns what waits until the session of both sides is another one than now.
func newSession(ctx context.Context, t *testing.T, w *e2e.World) (again func()) {
	t.Helper()
	since := func(ctx context.Context, side *e2e.Side) time.Time {
		if peer, err := side.Peer(ctx); err == nil && peer != nil && peer.Status.Session != nil {
			return peer.Status.Session.Since.Time
		}
		return time.Time{}
	}
	before := map[*e2e.Side]time.Time{}
	for _, side := range w.Sides() {
		before[side] = since(ctx, side)
	}
	begin := time.Now()
	return func() {
		t.Helper()
		for _, side := range w.Sides() {
			ok(t, w.Until(ctx, e2e.Restarted, side.Name+" to have another session", func(ctx context.Context) (string, error) {
				if !since(ctx, side).After(before[side]) {
					return "it has none yet", nil
				}
				return "", nil
			}))
		}
		t.Logf("there is another session after %s", time.Since(begin).Round(100*time.Millisecond))
	}
}

// carriesThePeerAPIAlone checks that a tunnel has no prefixes.
func carriesThePeerAPIAlone(ctx context.Context, t *testing.T, w *e2e.World) {
	t.Helper()
	for _, side := range w.Sides() {
		ok(t, w.Until(ctx, e2e.Soon, "the tunnel of "+side.Name+" to be for the peer API alone", func(ctx context.Context) (string, error) {
			var tunnels v1alpha1.TunnelList
			if err := side.Client.List(ctx, &tunnels); err != nil {
				return "", err
			}
			if len(tunnels.Items) != 1 || tunnels.Items[0].Spec.InBand == nil {
				return fmt.Sprintf("there are %v", tunnels.Items), nil
			}
			if s := tunnels.Items[0].Spec; len(s.Local)+len(s.Remote)+len(s.Allow) > 0 {
				return fmt.Sprintf("it has %v, %v, %v", s.Local, s.Remote, s.Allow), nil
			}
			return "", nil
		}))
	}
}

// parametersOf writes each cluster's file, and checks that it holds no secret.
func parametersOf(ctx context.Context, t *testing.T, w *e2e.World) map[*e2e.Side]string {
	t.Helper()
	out := map[*e2e.Side]string{}
	for _, side := range w.Sides() {
		text, err := side.Entente(ctx, "network", "parameters")
		ok(t, err)
		var secrets corev1.SecretList
		ok(t, side.Client.List(ctx, &secrets, ctrlclient.InNamespace(e2e.SystemNamespace)))
		for i := range secrets.Items {
			for key, value := range secrets.Items[i].Data {
				if len(value) >= 16 && slices.ContainsFunc(strings.Fields(text), func(word string) bool { return strings.Contains(word, string(value)) }) {
					t.Errorf("the file of %s has what Secret %s has under %s", side.Name, secrets.Items[i].Name, key)
				}
			}
		}
		out[side] = filepath.Join(t.TempDir(), side.Name+".yaml")
		ok(t, os.WriteFile(out[side], []byte(text), 0o600))
	}
	return out
}
