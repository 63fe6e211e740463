package neighbours

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	. "github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/lab"
)

const (
	// closed is how long a connection is tried that a policy drops.
	closed = "3s"
	// apiPort is that of the API server on a cluster's first node.
	apiPort = 6443
)

// TestAPolicyOfHomeIsEnforcedAbroad runs kube-router's firewall in the provider's cluster, and has pods at home and
// abroad try to reach each other as NetworkPolicies of home come, change and go.
func TestAPolicyOfHomeIsEnforcedAbroad(t *testing.T) {
	ctx, w, _ := peered(t)
	enforces(ctx, t, w, w.Abroad)
	Offloaded(ctx, t, w, shop)
	pods := map[string]*corev1.Pod{}
	for name, where := range map[string]Where{"web": Away, "other": Away, "friend": Away, "stranger": Away, "friend-home": AtHome, "stranger-home": AtHome} {
		app, _, _ := strings.Cut(name, "-")
		d, _ := Web(shop, name, 1, where)
		d.Spec.Template.Labels["who"] = app
		OK(t, w.Home.Create(ctx, d))
		ready, err := w.Home.PodsReady(ctx, Scheduled, shop, d.Labels, 1)
		OK(t, err)
		pods[name] = &ready[0]
	}
	twins := map[string]string{}
	for name, pod := range pods {
		if twin, err := w.Abroad.Twin(ctx, pod); err == nil {
			twins[name] = twin.Status.PodIP
		}
	}
	// reach returns who of the others gets an answer of a pod.
	reach := func(ctx context.Context, to string, from ...string) (reached []string) {
		var mu sync.Mutex
		var all sync.WaitGroup
		for _, who := range from {
			all.Go(func() {
				// Pods of one cluster know each other by its own addresses.
				address := pods[to].Status.PodIP
				if twins[who] != "" {
					address = twins[to]
				}
				if _, err := w.Home.InPod(ctx, shop, pods[who].Name, "/tool", "curl", "-t", closed, "http://"+address+":8080/name"); err == nil {
					mu.Lock()
					defer mu.Unlock()
					reached = append(reached, who)
				}
			})
		}
		all.Wait()
		slices.Sort(reached)
		return reached
	}
	// holds waits until exactly these reach a pod, and checks that it stays so.
	holds := func(t *testing.T, to string, want ...string) {
		t.Helper()
		everybody := slices.DeleteFunc([]string{"friend", "friend-home", "other", "stranger", "stranger-home"}, func(n string) bool { return n == to })
		begin := time.Now()
		is := func(ctx context.Context) (string, error) {
			if got := reach(ctx, to, everybody...); !slices.Equal(got, want) {
				return fmt.Sprintf("%q reach it", got), nil
			}
			return "", nil
		}
		OK(t, w.Until(ctx, Soon, fmt.Sprintf("only %q to reach %s", want, to), is))
		t.Logf("%q reach %s after %s", want, to, time.Since(begin).Round(100*time.Millisecond))
		if missing, _ := is(ctx); missing != "" {
			t.Errorf("%s, a moment after: want %q", missing, want)
		}
	}

	holds(t, "web", "friend", "friend-home", "other", "stranger", "stranger-home")
	ingress := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "friends"},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"who": "web"}}, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{
				From:  []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"who": "friend"}}}},
				Ports: []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromInt32(WebPort))}},
			}},
		},
	}
	OK(t, w.Home.Create(ctx, ingress))
	t.Run("ingress from pods with a label, wherever they run", func(t *testing.T) {
		holds(t, "web", "friend", "friend-home")
		holds(t, "other", "friend", "friend-home", "stranger", "stranger-home")
	})
	t.Run("another port is closed", func(t *testing.T) {
		OK(t, changed(ctx, w, ingress, func() { ingress.Spec.Ingress[0].Ports[0].Port = new(intstr.FromInt32(WebPort + 1)) }))
		holds(t, "web")
		OK(t, changed(ctx, w, ingress, func() { ingress.Spec.Ingress[0].Ports[0].Port = new(intstr.FromInt32(WebPort)) }))
		holds(t, "web", "friend", "friend-home")
	})
	t.Run("a policy that lets more in adds up", func(t *testing.T) {
		more := ingress.DeepCopy()
		more.ObjectMeta = metav1.ObjectMeta{Namespace: shop, Name: "strangers"}
		more.Spec.Ingress[0].From[0].PodSelector.MatchLabels["who"] = "stranger"
		OK(t, w.Home.Create(ctx, more))
		holds(t, "web", "friend", "friend-home", "stranger", "stranger-home")
		OK(t, w.Home.Client.Delete(ctx, more))
		holds(t, "web", "friend", "friend-home")
	})
	t.Run("egress to pods with a label, and names", func(t *testing.T) {
		egress := &networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "to-web"},
			Spec: networkingv1.NetworkPolicySpec{
				PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"who": "friend"}}, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
				Egress: []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"who": "web"}}}}}},
			},
		}
		OK(t, w.Home.Create(ctx, egress))
		// Nothing enforces policies at home, so the friend there reaches both.
		holds(t, "web", "friend", "friend-home")
		holds(t, "other", "friend-home", "stranger", "stranger-home")
		if out, err := w.Home.InPod(ctx, shop, pods["friend"].Name, "/tool", "dig", "web"); err == nil {
			t.Errorf("it resolves names that no policy opens: %s", out)
		}
		OK(t, w.Home.Client.Delete(ctx, egress))
		holds(t, "other", "friend", "friend-home", "stranger", "stranger-home")
	})
	OK(t, w.Home.Client.Delete(ctx, ingress))
	t.Run("without policies all is open", func(t *testing.T) {
		holds(t, "web", "friend", "friend-home", "other", "stranger", "stranger-home")
	})
}

// changed changes a policy at home.
func changed(ctx context.Context, w *World, p *networkingv1.NetworkPolicy, change func()) error {
	if err := w.Home.Client.Get(ctx, ctrlclient.ObjectKeyFromObject(p), p); err != nil {
		return err
	}
	change()
	return w.Home.Client.Update(ctx, p)
}

// enforces runs kube-router's firewall on a cluster's node until the test ends.
func enforces(ctx context.Context, t *testing.T, w *World, s *Side) {
	t.Helper()
	program, err := lab.KubeRouter(ctx, w.Waiting)
	OK(t, err)
	settings := []string{
		// Not by the address of this kubeconfig, which is outside of the cluster.
		"--kubeconfig=" + s.Kubeconfig, "--master=https://" + netip.AddrPortFrom(nodeAddress(s), apiPort).String(), "--hostname-override=" + s.Node(), "--run-router=false", "--run-service-proxy=false", "--run-firewall=true",
		"--enable-ipv4=true", "--service-cluster-ip-range=" + s.Plan.ServiceCIDR.String(), "--iptables-sync-period=10s", "--health-port=0",
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	cmd, err := w.Lab.Exec(running, s.Node(), false, append([]string{program}, settings...)...)
	OK(t, err)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	OK(t, cmd.Start())
	t.Cleanup(func() {
		stop()
		err := cmd.Wait()
		var ended *exec.ExitError
		if t.Failed() || err != nil && !errors.As(err, &ended) && !errors.Is(err, context.Canceled) {
			t.Logf("kube-router: %v\n%s", err, log.String())
		}
		// Its own clean-up stops in the middle where the kernel has no IPVS.
		_, err = s.OnNode(context.WithoutCancel(ctx), "bash", "-c", `set -o pipefail
			iptables-save -t filter | grep -v -e KUBE-ROUTER -e KUBE-POD-FW -e KUBE-NWPLCY | iptables-restore -T filter && ipset destroy`)
		OK(t, err)
	})
	OK(t, w.Until(ctx, Soon, "kube-router to put its chains before those of others", func(ctx context.Context) (string, error) {
		out, err := s.OnNode(ctx, "iptables-save", "-t", "filter")
		if !strings.Contains(out, "-j KUBE-ROUTER-FORWARD") {
			return "they are not there", err
		}
		return "", err
	}))
}
