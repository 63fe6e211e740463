// Package families peers clusters of one IP family with clusters of both, and runs pods of each at the other.
package families

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/only"
)

// The clusters are, in this order, of IPv4, of both families, and of IPv6.
var theStage = e2e.Installed{Config: e2e.Config{Lab: "families", More: []string{"oslo"}, Families: "ipv4,dual,ipv6"}}

func TestMain(m *testing.M) { os.Exit(theStage.Main(m)) }

// TestClustersOfDifferentFamiliesRunEachOthersPods has a dual-stack cluster peer with one of IPv4 and with one of IPv6. Each of these
// runs pods there, and it runs pods at each of them: over the families that both have, pods reach each other by names.
func TestClustersOfDifferentFamiliesRunEachOthersPods(t *testing.T) {
	only.Matrix(t, "five minutes; TestMatrix has clusters of the same families")
	ctx, w := theStage.On(t)
	rome, milan, oslo := w.Home, w.Abroad, w.More[0]
	pairs := []e2e.Pair{{rome, milan}, {oslo, milan}}
	for _, p := range pairs {
		token, err := p[1].CreateToken(ctx)
		e2e.OK(t, err)
		_, err = p[0].Entente(ctx, "join", token)
		e2e.OK(t, err)
	}
	for _, p := range pairs {
		for _, way := range p.Ways() {
			_, err := way[0].Entente(ctx, "peer", way[1].Name)
			e2e.OK(t, err)
		}
	}
	e2e.OK(t, w.BothWays(ctx, e2e.Restarted, func(string) {}, pairs...))
	for _, p := range pairs {
		for _, way := range p.Ways() {
			t.Run(fmt.Sprintf("pods of %s at %s", way[0].Name, way[1].Name), func(t *testing.T) { runsAt(ctx, t, way[0], way[1]) })
		}
	}
}

// families are those of a cluster.
func families(side *e2e.Side) (out []corev1.IPFamily) {
	for _, p := range side.Plan.PodCIDRs() {
		out = append(out, family(p.Addr()))
	}
	return out
}

func family(a netip.Addr) corev1.IPFamily {
	if a.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

// runsAt offloads a namespace to a provider, with a pod here and one there that reach each other by Services of each kind.
func runsAt(ctx context.Context, t *testing.T, home, provider *e2e.Side) {
	t.Helper()
	shop := "at-" + provider.Name
	e2e.OK(t, home.CreateNamespace(ctx, shop))
	t.Cleanup(func() {
		_, err := home.Kubectl(context.WithoutCancel(ctx), "delete", "namespace", shop, "--timeout=2m")
		e2e.OK(t, err)
	})
	_, err := home.Entente(ctx, "offload", "namespace", shop, "--peer", provider.Name)
	e2e.OK(t, err)
	pods := map[string][]corev1.Pod{}
	for name, where := range map[string]e2e.Where{"near": e2e.AtHome, "far": e2e.Away} {
		d, _ := e2e.Web(shop, name, 1, where)
		e2e.OK(t, home.Create(ctx, d))
		pods[name], err = home.PodsReady(ctx, e2e.Scheduled, shop, d.Labels, 1)
		e2e.OK(t, err)
	}
	for _, ip := range pods["far"][0].Status.PodIPs {
		t.Logf("the pod abroad has the address %s", ip.IP)
		if !slices.Contains(families(home), family(netip.MustParseAddr(ip.IP))) {
			t.Errorf("the pod abroad has the address %s, want those of %s, as pods at home", ip.IP, families(home))
		}
	}
	if got, want := netip.MustParseAddr(pods["far"][0].Status.PodIP), families(home)[0]; family(got) != want && len(families(provider)) == 2 {
		t.Errorf("the pod abroad has the address %s; want one of %s first, as pods at home", got, want)
	}
	for _, name := range []string{"near", "far"} {
		_, service := e2e.Web(shop, name, 1, e2e.Anywhere)
		service.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyPreferDualStack)
		e2e.OK(t, home.Create(ctx, service))
		e2e.OK(t, home.ReachesAll(ctx, e2e.Soon, shop, pods["near"][0].Name, "http://"+name+":8080/name", pods[name]))
		e2e.OK(t, home.ReachesAll(ctx, e2e.Soon, shop, pods["far"][0].Name, "http://"+name+":8080/name", pods[name]))
		for _, f := range families(home) {
			if len(families(provider)) == 1 && families(provider)[0] != f {
				continue
			}
			one := service.DeepCopy()
			one.ObjectMeta = *service.ObjectMeta.DeepCopy()
			one.Name, one.ResourceVersion, one.UID = name+"-"+map[corev1.IPFamily]string{corev1.IPv4Protocol: "4", corev1.IPv6Protocol: "6"}[f], "", ""
			one.Spec.ClusterIP, one.Spec.ClusterIPs = "", nil
			one.Spec.IPFamilyPolicy, one.Spec.IPFamilies = new(corev1.IPFamilyPolicySingleStack), []corev1.IPFamily{f}
			e2e.OK(t, home.Create(ctx, one))
			for _, from := range []string{"near", "far"} {
				e2e.OK(t, home.ReachesAll(ctx, e2e.Soon, shop, pods[from][0].Name, "http://"+one.Name+":8080/name", pods[name]))
			}
		}
	}
}
