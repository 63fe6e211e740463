package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
)

const shop = "shop"

// TestPeerDoesEverything peers two clusters that never met with one command.
func TestPeerDoesEverything(t *testing.T) {
	ctx, w := theStage.On(t)
	OK(t, w.Unpeer(ctx))
	begin := time.Now()
	out, err := w.Home.Entente(ctx, "peer", "--remote-kubeconfig", w.Abroad.Kubeconfig)
	OK(t, err)
	t.Logf("peered in %s:\n%s", time.Since(begin).Round(100*time.Millisecond), out)
	for _, step := range []string{"token", "Contract", "tunnel", "Virtual node"} {
		if !strings.Contains(out, step) {
			t.Errorf("it does not say how %q went", step)
		}
	}
	// Once more changes nothing.
	home, _ := TheContract(ctx, t, w)
	_, err = w.Home.Entente(ctx, "peer", "--remote-kubeconfig", w.Abroad.Kubeconfig)
	OK(t, err)
	again, abroad := TheContract(ctx, t, w)
	if home.Name != again.Name {
		t.Errorf("peering again made contract %s of %s", again.Name, home.Name)
	}
	if again.Spec.Envelope != abroad.Spec.Envelope {
		t.Error("the two sides hold different envelopes")
	}
}

// TestKubectlShowsThePeering shows a peering as a user sees it.
func TestKubectlShowsThePeering(t *testing.T) {
	ctx, w := theStage.On(t)
	name := peered(ctx, t, w)
	contract, _ := TheContract(ctx, t, w)

	for _, side := range []struct {
		s    *Side
		role v1alpha1.Role
	}{{w.Home, v1alpha1.RoleProvider}, {w.Abroad, v1alpha1.RoleConsumer}} {
		out, err := side.s.Kubectl(ctx, "get", "foreignclusters")
		OK(t, err)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if len(lines) != 2 || !slices.Equal(strings.Fields(lines[0]), []string{"NAME", "ROLE", "CONNECTED", "NETWORK", "GRANTED", "USED", "AGE"}) {
			t.Fatalf("kubectl get foreignclusters in %s printed\n%s", side.s.Name, out)
		}
		row := strings.Fields(lines[1])
		if row[0] != side.s.Other.Name || row[1] != string(side.role) || row[2] != "True" || row[3] != "True" {
			t.Errorf("in %s the peer is %q, want %s with role %s, connected, with a tunnel", side.s.Name, lines[1], side.s.Other.Name, side.role)
		}
		if granted := contract.Spec.Resources.Cpu().String() + " CPU, "; !strings.Contains(lines[1], granted) || !strings.Contains(lines[1], "%") {
			t.Errorf("in %s the row is %q, want the grant, %s…, and how much of it is used", side.s.Name, lines[1], granted)
		}
	}

	var node corev1.Node
	OK(t, w.Home.Client.Get(ctx, ctrlclient.ObjectKey{Name: name}, &node))
	for resource, amount := range contract.Spec.Resources {
		capacity, allocatable := node.Status.Capacity[resource], node.Status.Allocatable[resource]
		if capacity.Cmp(amount) != 0 || allocatable.Cmp(amount) != 0 {
			t.Errorf("the node has %s of %s, %s allocatable; the contract grants %s", capacity.String(), resource, allocatable.String(), amount.String())
		}
	}
	for _, resource := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if q := node.Status.Capacity[resource]; q.IsZero() {
			t.Errorf("the node has no %s", resource)
		}
	}
	if ready, why := NodeCondition(&node); !ready {
		t.Errorf("the node is not Ready: %s", why)
	}
	if arch := node.Labels[corev1.LabelArchStable]; arch == "" {
		t.Error("the node does not say its architecture")
	}
	for _, s := range w.Sides() {
		for _, condition := range []string{v1alpha1.ConditionTrusted, v1alpha1.ConditionConnected, v1alpha1.ConditionNetwork, v1alpha1.ConditionOffloading} {
			_, err := s.Condition(ctx, Soon, condition, metav1.ConditionTrue)
			OK(t, err)
		}
		out, err := s.WireGuard(ctx, "interfaces")
		OK(t, err)
		if devices := strings.Fields(out); len(devices) != 1 {
			t.Errorf("WireGuard devices on node %s are %q, want one", s.Node(), devices)
		}
	}
	out, err := w.Home.Entente(ctx, "contract", "show", contract.Name)
	OK(t, err)
	if !strings.Contains(out, "signed") {
		t.Errorf("entente contract show printed\n%s", out)
	}
	for _, s := range w.Sides() {
		if _, err := s.Entente(ctx, "info"); err != nil {
			t.Errorf("entente info in %s: %v", s.Name, err)
		}
	}
}

// TestAdminAPIsAgree asks for the same peering through gRPC, REST and the CLI, and as a user
// without the right to.
func TestAdminAPIsAgree(t *testing.T) {
	ctx, w := theStage.On(t)
	peered(ctx, t, w)
	clerk, err := w.Home.NewClerk(ctx, "clerk", "entente-admin")
	OK(t, err)
	t.Cleanup(func() { OK(t, clerk.Dismiss(context.WithoutCancel(t.Context()))) })
	guest, err := w.Home.NewClerk(ctx, "guest", "")
	OK(t, err)
	t.Cleanup(func() { OK(t, guest.Dismiss(context.WithoutCancel(t.Context()))) })

	out, err := clerk.Grpcurl(ctx, "", "list")
	OK(t, err)
	for _, service := range []string{"entente.v1.AdminService", "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"} {
		if !slices.Contains(strings.Fields(out), service) {
			t.Errorf("grpcurl list does not show %s:\n%s", service, out)
		}
	}
	out, err = clerk.Grpcurl(ctx, "", "describe", "entente.v1.AdminService")
	OK(t, err)
	if !strings.Contains(out, "rpc GetPeer") {
		t.Errorf("grpcurl describe printed\n%s", out)
	}

	viaGRPC, err := clerk.Grpcurl(ctx, `{"name":"peers/`+w.Abroad.Name+`"}`, "entente.v1.AdminService/GetPeer")
	OK(t, err)
	status, viaREST, err := clerk.Get(ctx, "/v1/peers/"+w.Abroad.Name)
	OK(t, err)
	if status != http.StatusOK {
		t.Fatalf("REST answers %d: %s", status, viaREST)
	}
	viaCLI, err := w.Home.Entente(ctx, "info", "peer", w.Abroad.Name, "-o", "json")
	OK(t, err)
	grpcPeer, restPeer := facts(t, []byte(viaGRPC)), facts(t, viaREST)
	cliPeer := facts(t, []byte(`{"peer":`+viaCLI+`}`))
	if grpcPeer != restPeer || restPeer != cliPeer {
		t.Errorf("the same peering is\n%s through gRPC,\n%s through REST,\n%s through the CLI", grpcPeer, restPeer, cliPeer)
	}
	if !strings.Contains(grpcPeer, "Active") || !strings.Contains(grpcPeer, "Provider") {
		t.Errorf("the peering is %s", grpcPeer)
	}

	for what, c := range map[string]*Clerk{"a user without rights": guest, "nobody": {side: w.Home, Address: clerk.Address, CA: clerk.CA}} {
		status, body, err := c.Get(ctx, "/v1/peers/"+w.Abroad.Name)
		OK(t, err)
		if status != http.StatusForbidden && status != http.StatusUnauthorized {
			t.Errorf("REST answers %s with %d: %s", what, status, body)
		}
	}
	if out, err := guest.Grpcurl(ctx, "", "entente.v1.AdminService/CreateToken"); err == nil {
		t.Errorf("a user without rights made a token: %s", out)
	} else if !strings.Contains(err.Error(), "CALLER_NOT_ALLOWED") {
		t.Errorf("the refusal does not give the reason: %v", err)
	}
}

// facts returns the fields of a peer, without those that change from call to call and those that
// one form omits when empty.
func facts(t *testing.T, b []byte) string {
	t.Helper()
	var answer struct {
		Peer struct {
			Name, ClusterID, Role string
			Endpoints             []string
			Conditions            []struct{ Type, Status, Reason string }
			Contracts             []struct {
				ContractID, Phase, Role, Node string
				Resources                     struct{ Amounts map[string]string }
			}
			Tunnel struct {
				Up                            bool
				Backend                       string
				LocalPrefixes, RemotePrefixes map[string]string
			}
		}
	}
	if err := json.Unmarshal(b, &answer); err != nil {
		t.Fatalf("read %s: %v", b, err)
	}
	return fmt.Sprintf("%+v", answer.Peer)
}

// TestDeploymentRunsInBothClusters is the main job: pods on both sides of the
// border, reached by name from both sides.
func TestDeploymentRunsInBothClusters(t *testing.T) {
	ctx, w := theStage.On(t)
	node := peered(ctx, t, w)
	Offloaded(ctx, t, w, shop)
	const replicas = 4
	both, bothService := Web(shop, "web", replicas, Everywhere)
	inn, innService := Web(shop, "inn", 1, AtHome)
	out, outService := Web(shop, "out", 1, Away)
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "config"}, Data: map[string]string{"greeting": "ciao"}}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "secret"}, StringData: map[string]string{"word": "segreto"}}
	private := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "private"}, StringData: map[string]string{"word": "not for abroad"}}
	c := &out.Spec.Template.Spec.Containers[0]
	c.EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "config"}}}}
	c.VolumeMounts = []corev1.VolumeMount{{Name: "secret", MountPath: "/secret"}}
	out.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "secret"}}}}
	OK(t, w.Home.Create(ctx, config, secret, private, both, bothService, inn, innService, out, outService))

	pods, err := w.Home.PodsReady(ctx, Scheduled, shop, both.Labels, replicas)
	OK(t, err)
	inns, err := w.Home.PodsReady(ctx, Scheduled, shop, inn.Labels, 1)
	OK(t, err)
	outs, err := w.Home.PodsReady(ctx, Scheduled, shop, out.Labels, 1)
	OK(t, err)
	home, away := Split(pods)
	if len(home) != replicas/2 || len(away) != replicas/2 {
		t.Fatalf("%d pods are at home and %d abroad, want half and half", len(home), len(away))
	}
	remote, err := w.RemoteNamespace(ctx, shop)
	OK(t, err)

	t.Run("each pod abroad is one pod, with the address that home translates", func(t *testing.T) {
		for i := range away {
			twin, err := w.Abroad.Twin(ctx, &away[i])
			OK(t, err)
			if twin.Namespace != remote {
				t.Errorf("%s runs in %s, want %s", twin.Name, twin.Namespace, remote)
			}
			if twin.Status.PodIP == away[i].Status.PodIP || away[i].Status.PodIP == "" {
				t.Errorf("%s has the address %q at home and %q abroad: the prefixes are the same, so an alias is wanted", twin.Name, away[i].Status.PodIP, twin.Status.PodIP)
			}
		}
	})
	t.Run("pods answer by the Service's name on both sides, wherever they run", func(t *testing.T) {
		for _, from := range []string{home[0].Name, away[0].Name} {
			for url, answering := range map[string][]corev1.Pod{
				"http://web:8080/name": pods, "http://inn:8080/name": inns, "http://out:8080/name": outs,
			} {
				OK(t, w.Home.ReachesAll(ctx, Soon, shop, from, url, answering))
			}
		}
	})
	t.Run("a Service that prefers the cluster it is used in leads abroad to the pods there, while one is ready", func(t *testing.T) {
		_, err := w.Home.Kubectl(ctx, "annotate", "-n", shop, "service", "web", v1alpha1.AnnotationEndpoints+"=OwnFirst")
		OK(t, err)
		alone := func(which string, others []corev1.Pod) {
			t.Helper()
			OK(t, w.Until(ctx, Soon, "pods "+which+" alone to answer one abroad", func(ctx context.Context) (string, error) {
				answers, err := w.Home.Answers(ctx, shop, away[0].Name, 4*replicas, "http://web:8080/name")
				for a := range answers {
					if slices.ContainsFunc(others, func(p corev1.Pod) bool { return strings.HasPrefix(a, p.Name+" ") || a == p.Name }) {
						return a + " answers, too", nil
					}
				}
				return "", err
			}))
		}
		says := func(health string) {
			t.Helper()
			for i := range away {
				_, err := w.Home.InPod(ctx, shop, away[i].Name, "/tool", "write", "/tmp/health", health)
				OK(t, err)
			}
		}
		alone("abroad", home)
		says("sick")
		alone("at home", away)
		says("ok")
		alone("abroad", home)
		_, err = w.Home.Kubectl(ctx, "annotate", "-n", shop, "service", "web", v1alpha1.AnnotationEndpoints+"-")
		OK(t, err)
		OK(t, w.Home.ReachesAll(ctx, Soon, shop, away[0].Name, "http://web:8080/name", pods))
	})
	t.Run("pods reach each other by address, and large answers fit through", func(t *testing.T) {
		for _, path := range []struct{ from, to corev1.Pod }{{home[0], away[0]}} {
			out, err := w.Home.InPod(ctx, shop, path.from.Name, "/tool", "curl", "-t", "20s", "http://"+path.to.Status.PodIP+":8080/bytes/5000000")
			OK(t, err)
			if len(out) != 5000000 {
				t.Errorf("%d bytes came through, want 5000000", len(out))
			}
		}
		out, err := w.Home.InPod(ctx, shop, away[0].Name, "/tool", "curl", "-t", "20s", "http://inn:8080/bytes/5000000")
		OK(t, err)
		if len(out) != 5000000 {
			t.Errorf("%d bytes came back through, want 5000000", len(out))
		}
		if _, err := w.Home.InPod(ctx, shop, home[0].Name, "/tool", "echo", "udp", away[0].Status.PodIP+":8081", "hello"); err != nil {
			t.Error(err)
		}
	})
	t.Run("what a pod refers to is there with it, and nothing else", func(t *testing.T) {
		text, err := w.Home.InPod(ctx, shop, outs[0].Name, "/tool", "env")
		OK(t, err)
		if !strings.Contains(text, "greeting=ciao\n") {
			t.Errorf("the ConfigMap is not in the environment:\n%s", text)
		}
		if text, err = w.Home.InPod(ctx, shop, outs[0].Name, "/tool", "cat", "/secret/word"); err != nil || text != "segreto" {
			t.Errorf("the Secret is %q (%v)", text, err)
		}
		var secrets corev1.SecretList
		OK(t, w.Abroad.Client.List(ctx, &secrets, ctrlclient.InNamespace(remote)))
		for _, s := range secrets.Items {
			if s.Name != "secret" {
				t.Errorf("Secret %s of type %s is abroad too", s.Name, s.Type)
			}
		}
	})
	t.Run("a ConfigMap that changes changes abroad", func(t *testing.T) {
		config.Data["greeting"] = "buongiorno"
		OK(t, w.Home.Client.Update(ctx, config))
		OK(t, w.Until(ctx, Soon, "the ConfigMap to change abroad", func(ctx context.Context) (string, error) {
			var there corev1.ConfigMap
			err := w.Abroad.Client.Get(ctx, ctrlclient.ObjectKey{Namespace: remote, Name: "config"}, &there)
			if err == nil && there.Data["greeting"] != "buongiorno" {
				return fmt.Sprintf("it has %v", there.Data), nil
			}
			return "", err
		}))
	})
	t.Run("events of a pod abroad are seen at home", func(t *testing.T) {
		OK(t, w.Until(ctx, Soon, "an event of pod "+away[0].Name, func(ctx context.Context) (string, error) {
			var events corev1.EventList
			if err := w.Home.Client.List(ctx, &events, ctrlclient.InNamespace(shop)); err != nil {
				return "", err
			}
			var reasons []string
			for _, e := range events.Items {
				if e.InvolvedObject.UID == away[0].UID {
					reasons = append(reasons, e.Reason)
				}
			}
			// The scheduler's is of home, the kubelet's is of abroad.
			if !slices.Contains(reasons, "Started") {
				return fmt.Sprintf("there are %q, and no Started", reasons), nil
			}
			return "", nil
		}))
	})
	t.Run("logs and exec work through kubectl", func(t *testing.T) {
		text, err := w.Home.Kubectl(ctx, "logs", "-n", shop, away[0].Name)
		OK(t, err)
		if !strings.Contains(text, "GET /name") {
			t.Errorf("the log of %s has no request:\n%s", away[0].Name, text)
		}
		text, err = w.Home.InPod(ctx, shop, away[0].Name, "/tool", "env")
		OK(t, err)
		if !strings.Contains(text, "NODE_NAME="+node+"\n") || !strings.Contains(text, "POD_NAME="+away[0].Name+"\n") {
			t.Errorf("exec printed\n%s", text)
		}
		_, err = w.Home.InPod(ctx, shop, away[0].Name, "/tool", "exit", "7")
		if failed, is := err.(*CommandError); !is || failed.Code != 7 { //nolint:errorlint // as InPod returns it
			t.Errorf("a command that ends with 7 ends with %v", err)
		}
	})
	t.Run("kubectl does with a pod abroad what it does at home, also without a tunnel", func(t *testing.T) {
		again := restarted(ctx, t, w)
		kubectlWorks(ctx, t, w, &outs[0], again)
		t.Cleanup(func() {
			after := context.WithoutCancel(ctx)
			_, err := w.Home.Entente(after, "network", "connect", w.Abroad.Name)
			OK(t, err)
			OK(t, w.Home.ReachesAll(after, Soon, shop, inns[0].Name, "http://out:8080/name", outs))
		})
		_, err := w.Home.Entente(ctx, "network", "disconnect", w.Abroad.Name, "--force")
		OK(t, err)
		if answers, err := w.Home.Answers(ctx, shop, inns[0].Name, 1, "http://"+outs[0].Status.PodIP+":8080/name"); err == nil {
			t.Errorf("without a tunnel the pod abroad answers: %v", answers)
		}
		kubectlWorks(ctx, t, w, &outs[0], again)
	})
	t.Run("kubectl debug adds a container to a pod abroad", func(t *testing.T) {
		debug := func(container string, args ...string) []string {
			return append([]string{"debug", "-n", shop, outs[0].Name, "--image=" + ToolImage, "--container=" + container}, args...)
		}
		_, err := w.Home.Kubectl(ctx, debug("look", "--profile=baseline", "--", "/tool", "env")...)
		OK(t, err)
		OK(t, w.Until(ctx, Soon, "the log of the container", func(ctx context.Context) (string, error) {
			text, err := w.Home.Kubectl(ctx, "logs", "-n", shop, outs[0].Name, "-c", "look")
			if err == nil && !strings.Contains(text, "HOSTNAME="+outs[0].Name+"\n") {
				return "it is\n" + text, nil
			}
			return "", err
		}))
		// One that serves beside the pod's own server, with the terminal attached to it.
		var seen Output
		attached, detach := context.WithCancel(Watching(ctx, &seen))
		defer detach()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = w.Home.Kubectl(attached, debug("serve", "--profile=baseline", "--attach", "--", "/tool", "serve", ":9090")...)
		}()
		OK(t, w.Until(ctx, Soon, "kubectl debug to show requests to the container", func(ctx context.Context) (string, error) {
			_, err := w.Home.InPod(ctx, shop, home[0].Name, "/tool", "curl", "-t", "2s", "http://"+outs[0].Status.PodIP+":9090/name")
			if text := seen.String(); err == nil && !strings.Contains(text, "GET /name") {
				return fmt.Sprintf("it shows %q", text), nil
			}
			return "", err
		}))
		detach()
		<-ended
		text, err := w.Home.Kubectl(ctx, "exec", "-n", shop, outs[0].Name, "-c", "serve", "--", "/tool", "env")
		OK(t, err)
		if !strings.Contains(text, "HOSTNAME="+outs[0].Name+"\n") {
			t.Errorf("exec in the container printed\n%s", text)
		}
		// What the contract's Pod Security level forbids does not run, and kubectl says why.
		_, err = w.Home.Kubectl(ctx, debug("trace", "--profile=sysadmin", "--", "/tool", "env")...)
		OK(t, err)
		OK(t, w.Until(ctx, Soon, "the refusal of a privileged container", func(ctx context.Context) (string, error) {
			pod, err := w.Home.Kube.CoreV1().Pods(shop).Get(ctx, outs[0].Name, metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			for _, c := range pod.Status.EphemeralContainerStatuses {
				if c.Name == "trace" && c.State.Waiting != nil && strings.Contains(c.State.Waiting.Message, "privileged") {
					return "", nil
				}
			}
			return fmt.Sprintf("the statuses are %+v", pod.Status.EphemeralContainerStatuses), nil
		}))
		// The pod itself is not the worse for any of it.
		now, err := w.Home.PodsReady(ctx, Soon, shop, out.Labels, 1)
		OK(t, err)
		OK(t, LivesOf(outs).Same(LivesOf(now)))
	})
	t.Run("a pod that is deleted at home ends abroad, and another takes its place", func(t *testing.T) {
		gone := away[0]
		OK(t, w.Home.Client.Delete(ctx, &gone))
		OK(t, w.Until(ctx, Soon, "its twin to be gone", func(ctx context.Context) (string, error) {
			if twin, err := w.Abroad.Twin(ctx, &gone); err == nil {
				return PodText(twin), nil
			}
			return "", nil
		}))
		_, err := w.Home.PodsReady(ctx, Scheduled, shop, both.Labels, replicas)
		OK(t, err)
	})
	t.Run("the internet sees WireGuard and TLS only", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "internet.pcap")
		OK(t, w.Record(ctx, file, func(ctx context.Context) error {
			if _, err := w.Home.Answers(ctx, shop, home[0].Name, 20, "http://out:8080/name"); err != nil {
				return err
			}
			if _, err := w.Home.Answers(ctx, shop, outs[0].Name, 20, "http://inn:8080/name"); err != nil {
				return err
			}
			if _, err := w.Home.Kubectl(ctx, "logs", "-n", shop, outs[0].Name); err != nil {
				return err
			}
			time.Sleep(5 * time.Second) // the session says something too
			return nil
		}))
		traffic, err := ReadTraffic(file, "GET /name", "segreto", outs[0].Name, inns[0].Name)
		OK(t, err)
		t.Log(traffic)
		if traffic.WireGuard < 100 || traffic.Records < 3 || traffic.Others > 0 {
			t.Errorf("the internet saw %s", traffic)
		}
	})
	t.Run("pods of other namespaces cannot be reached from abroad", func(t *testing.T) {
		closed := WebPod("default", "closed", map[string]string{"app": "closed"})
		place(&closed.Spec, AtHome, nil)
		OK(t, w.Home.Create(ctx, closed))
		t.Cleanup(func() { OK(t, w.Home.Client.Delete(context.WithoutCancel(t.Context()), closed)) })
		found, err := w.Home.PodsReady(ctx, Scheduled, "default", closed.Labels, 1)
		OK(t, err)
		peer, err := w.Abroad.Peer(ctx)
		OK(t, err)
		alias, err := Alias(peer, found[0].Status.PodIP)
		OK(t, err)
		if _, err := w.Home.InPod(ctx, shop, outs[0].Name, "/tool", "curl", "-t", "3s", "http://"+alias+":8080/name"); err == nil {
			t.Errorf("a pod abroad reaches %s, a pod of namespace default at home, as %s", found[0].Status.PodIP, alias)
		}
		// The way is right: a pod that is offloaded answers there.
		open, err := Alias(peer, inns[0].Status.PodIP)
		OK(t, err)
		if _, err := w.Home.InPod(ctx, shop, outs[0].Name, "/tool", "curl", "-t", "3s", "http://"+open+":8080/name"); err != nil {
			t.Errorf("a pod abroad does not reach %s as %s: %v", inns[0].Status.PodIP, open, err)
		}
		// But not on a port that its Service does not lead to.
		echo := net.JoinHostPort(open, strconv.Itoa(EchoPort))
		for _, network := range []string{"tcp", "udp"} {
			if _, err := w.Home.InPod(ctx, shop, home[0].Name, "/tool", "echo", network, net.JoinHostPort(inns[0].Status.PodIP, strconv.Itoa(EchoPort)), "hello"); err != nil {
				t.Errorf("%s on port %d of %s does not answer at home, so nothing is tested: %v", network, EchoPort, inns[0].Name, err)
			}
			if _, err := w.Home.InPod(ctx, shop, outs[0].Name, "/tool", "echo", network, echo, "hello"); err == nil {
				t.Errorf("a pod abroad reaches %s over %s, which is not a port of a Service", echo, network)
			}
		}
	})
}
