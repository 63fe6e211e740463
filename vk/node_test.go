package vk

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	api "github.com/entente-dev/entente/api/v1alpha1"
)

func (h *home) office() *corev1.Node {
	h.t.Helper()
	node, err := h.client.CoreV1().Nodes().Get(h.t.Context(), "office", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return node
}

func readyOf(node *corev1.Node) corev1.NodeCondition {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c
		}
	}
	return corev1.NodeCondition{}
}

func (h *home) wantReady(status corev1.ConditionStatus, reason string) {
	h.t.Helper()
	node := h.office()
	if node == nil {
		h.t.Fatal("there is no node")
	}
	if c := readyOf(node); c.Status != status || c.Reason != reason {
		h.t.Errorf("node is Ready=%s %s (%s), want %s %s", c.Status, c.Reason, c.Message, status, reason)
	}
}

func TestTheNodeShowsTheContract(t *testing.T) {
	atHome(t, func(h *home) {
		node := h.office()
		h.wantReady(corev1.ConditionTrue, "PeerConnected")
		if cpu, pods := node.Status.Allocatable.Cpu().String(), node.Status.Capacity.Pods().String(); cpu != "4" || pods != "110" {
			t.Errorf("the node has %s CPUs and %s pods, want 4 and 110", cpu, pods)
		}
		for k, want := range map[string]string{
			"kubernetes.io/hostname": "office", "kubernetes.io/arch": "arm64", "kubernetes.io/os": "linux", "example.com/gpu": "a100",
			"node.kubernetes.io/exclude-from-external-load-balancers": "true", "type": "virtual-kubelet", roleLabel: "", api.LabelVirtualNode: "true", api.LabelContract: "c-1",
		} {
			if got, ok := node.Labels[k]; !ok || got != want {
				t.Errorf("label %s is %q, want %q", k, got, want)
			}
		}
		if len(node.Spec.Taints) != 1 || node.Spec.Taints[0] != virtualNodeTaint() || node.Spec.ProviderID != "entente://peerpeerpeerpeerpeerpeerpeerpeer/c-1" {
			t.Errorf("spec is %+v", node.Spec)
		}
		if node.Status.Addresses[0].Address != "10.1.2.3" || node.Status.DaemonEndpoints.KubeletEndpoint.Port != 10250 {
			t.Errorf("the kubelet endpoint is %+v %+v", node.Status.Addresses, node.Status.DaemonEndpoints)
		}
		lease, err := h.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(h.t.Context(), "office", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		later, err := h.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(h.t.Context(), "office", metav1.GetOptions{})
		if err != nil || !later.Spec.RenewTime.After(lease.Spec.RenewTime.Time) {
			t.Errorf("the lease was not renewed: %v", err)
		}
	})
}

func TestALostPeerShowsWithinSeconds(t *testing.T) {
	atHome(t, func(h *home) {
		h.remote.connect(false)
		h.second()
		h.wantReady(corev1.ConditionTrue, "PeerConnected") // it may be back at once
		time.Sleep(3 * time.Second)
		synctest.Wait()
		h.wantReady(corev1.ConditionFalse, "PeerLost")
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		h.wantReady(corev1.ConditionFalse, "PeerLost")
		h.remote.connect(true)
		h.second()
		h.wantReady(corev1.ConditionTrue, "PeerConnected")
	})
}

// If a provider does not respond while its tunnel passes traffic, its agent is being replaced.
func TestTheNodeStaysReadyWhileAProvidersAgentIsReplaced(t *testing.T) {
	up := Network{Wanted: true, Up: true, Known: true, Reason: "ProbesAnswered"}
	atHome(t, func(h *home) {
		h.remote.connect(true)
		h.node.SetNetwork(up)
		h.second()
		h.wantReady(corev1.ConditionTrue, "PeerConnected")
		before := readyOf(h.office()).LastTransitionTime
		h.remote.connect(false)
		h.after(10 * time.Second)
		h.wantReady(corev1.ConditionTrue, "PeerConnected")
		h.remote.connect(true)
		h.second()
		if after := readyOf(h.office()).LastTransitionTime; !after.Equal(&before) {
			t.Errorf("Ready changed at %s, first at %s", after, before)
		}
		// The line itself was cut: the tunnel reports that a moment later.
		h.remote.connect(false)
		h.after(4 * time.Second)
		h.wantReady(corev1.ConditionTrue, "PeerConnected")
		h.node.SetNetwork(Network{Wanted: true, Known: true, Reason: "ProbesLost"})
		h.second()
		h.wantReady(corev1.ConditionFalse, "PeerLost")
		h.remote.connect(true)
		h.node.SetNetwork(up)
		h.second()
		// Or there no longer is an agent.
		h.remote.connect(false)
		h.after(17 * time.Second)
		h.wantReady(corev1.ConditionFalse, "PeerLost")
	})
}

func TestNetworkUnavailableFollowsTheTunnel(t *testing.T) {
	up := Network{Wanted: true, Up: true, Known: true, Reason: "ProbesAnswered"}
	down := Network{Wanted: true, Known: true, Reason: "ProbesLost", Message: "probes were lost"}
	want := func(h *home, status corev1.ConditionStatus, reason string) {
		h.t.Helper()
		h.second()
		for _, c := range h.office().Status.Conditions {
			if c.Type == corev1.NodeNetworkUnavailable && c.Status == status && c.Reason == reason {
				return
			}
		}
		h.t.Errorf("conditions are %+v, want NetworkUnavailable=%s %s", h.office().Status.Conditions, status, reason)
	}
	atHome(t, func(h *home) {
		want(h, corev1.ConditionUnknown, "TunnelNotKnown")
		h.node.SetNetwork(down)
		want(h, corev1.ConditionUnknown, "ProbesLost") // it is only being made
		h.after(tunnelStartGrace + repairInterval)
		want(h, corev1.ConditionTrue, "ProbesLost")
		h.node.SetNetwork(up)
		want(h, corev1.ConditionFalse, "ProbesAnswered")
		h.node.SetNetwork(down)
		want(h, corev1.ConditionTrue, "ProbesLost")
		h.node.SetNetwork(Network{Wanted: true, Reason: "FabricSilent"})
		want(h, corev1.ConditionUnknown, "FabricSilent")
		h.node.SetNetwork(Network{Known: true, Reason: "TunnelNotRequired"})
		want(h, corev1.ConditionFalse, "NoTunnel")
		h.wantReady(corev1.ConditionTrue, "PeerConnected")
	})
}

func TestARestartDoesNotShow(t *testing.T) {
	atHome(t, func(h *home) {
		before := readyOf(h.office()).LastTransitionTime
		h.stop()
		h.start()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		h.wantReady(corev1.ConditionTrue, "PeerConnected")
		h.remote.connect(true)
		time.Sleep(time.Minute)
		synctest.Wait()
		if after := readyOf(h.office()).LastTransitionTime; !after.Equal(&before) {
			t.Errorf("Ready changed at %s, first at %s", after, before)
		}
		h.stop()
		h.start() // and now the provider stays away
		time.Sleep(30 * time.Second)
		synctest.Wait()
		h.wantReady(corev1.ConditionFalse, "PeerNotConnected")
	})
}

func TestADeletedNodeIsCreatedAgain(t *testing.T) {
	atHome(t, func(h *home) {
		if err := h.client.CoreV1().Nodes().Delete(h.t.Context(), "office", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		h.second()
		h.wantReady(corev1.ConditionTrue, "PeerConnected")
	})
}

func TestALaterRevisionChangesTheNode(t *testing.T) {
	atHome(t, func(h *home) {
		node := h.office().DeepCopy()
		node.Labels["mine.example.com/rack"] = "7"
		if _, err := h.client.CoreV1().Nodes().Update(h.t.Context(), node, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		h.second()
		share := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("6"), corev1.ResourcePods: resource.MustParse("20")}
		if err := h.node.SetShare(h.t.Context(), share, map[string]string{"kubernetes.io/arch": "arm64", "example.com/site": "north"}, nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * repairInterval)
		synctest.Wait()
		node = h.office()
		if cpu, pods := node.Status.Allocatable.Cpu().String(), node.Status.Capacity.Pods().String(); cpu != "6" || pods != "20" {
			t.Errorf("the node has %s CPUs and %s pods, want 6 and 20", cpu, pods)
		}
		if _, memory := node.Status.Capacity[corev1.ResourceMemory]; memory {
			t.Error("the node still has memory, which is no longer granted")
		}
		if _, gpu := node.Labels["example.com/gpu"]; gpu || node.Labels["example.com/site"] != "north" || node.Labels["mine.example.com/rack"] != "7" {
			t.Errorf("labels are %v, want the new ones, those of others, and none that were dropped", node.Labels)
		}
		if node.Spec.Unschedulable {
			t.Error("the node is cordoned")
		}
		if err := h.node.Cordon(h.t.Context()); err != nil {
			t.Fatal(err)
		}
		if !h.office().Spec.Unschedulable {
			t.Error("the node is not cordoned")
		}
	})
}

func TestTheTaintIsPutBackAndACordonStays(t *testing.T) {
	atHome(t, func(h *home) {
		node := h.office().DeepCopy()
		other := corev1.Taint{Key: "mine", Effect: corev1.TaintEffectNoSchedule}
		node.Spec.Taints, node.Spec.Unschedulable = []corev1.Taint{other}, true
		if _, err := h.client.CoreV1().Nodes().Update(h.t.Context(), node, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * repairInterval)
		synctest.Wait()
		node = h.office()
		if len(node.Spec.Taints) != 2 || node.Spec.Taints[0] != other || node.Spec.Taints[1] != virtualNodeTaint() || !node.Spec.Unschedulable {
			t.Errorf("spec is %+v, want both taints and the cordon", node.Spec)
		}
	})
}

func TestARealNodeIsNeverTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHome(t)
		real := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "office"}}
		if _, err := h.client.CoreV1().Nodes().Create(h.t.Context(), real, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		n, err := New(Config{Name: "office", Contract: "c", Peer: "p", Client: h.client, Mirror: h.remote, Streams: h.remote, Namespaces: func() ([]Namespace, error) { return nil, nil }})
		if err != nil {
			t.Fatal(err)
		}
		h.remote.attach(n)
		if err := n.Run(h.t.Context()); err == nil || !strings.Contains(err.Error(), "not a virtual node") {
			t.Errorf("Run returned %v", err)
		}
		if err := n.Remove(h.t.Context()); err == nil {
			t.Error("a real node was removed")
		}
		if len(h.office().Labels) > 0 {
			t.Error("the real node was changed")
		}
	})
}

func TestDrainRespectsBudgetsAndRemoveLeavesNothing(t *testing.T) {
	atHome(t, func(h *home) {
		h.bind("u1", "web")
		h.bind("u2", "guarded")
		ctx := h.t.Context()
		var allowed bool
		h.client.PrependReactor("create", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
			if a.GetSubresource() != "eviction" {
				return false, nil, nil
			}
			e := a.(k8stesting.CreateAction).GetObject().(*policyv1.Eviction)
			if e.Name == "guarded" && !allowed {
				return true, nil, apierrors.NewTooManyRequests("the disruption budget guard needs 1 healthy pod", 5)
			}
			pods := corev1.SchemeGroupVersion.WithResource("pods")
			obj, err := h.client.Tracker().Get(pods, e.Namespace, e.Name)
			if err != nil {
				return true, nil, err
			}
			pod := obj.(*corev1.Pod).DeepCopy()
			now, grace := metav1.Now(), int64(30)
			pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &now, &grace
			return true, nil, h.client.Tracker().Update(pods, pod, e.Namespace)
		})
		short, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		var said []string
		err := h.node.Drain(short, func(p DrainProgress) { said = append(said, fmt.Sprint(p.Pods, p.Ending, len(p.Blocked))) })
		if err == nil || !strings.Contains(err.Error(), "shop/guarded: the disruption budget") {
			t.Errorf("Drain returned %v, want what is left and why", err)
		}
		if h.pod("web") != nil || h.pod("guarded") == nil || !h.office().Spec.Unschedulable {
			t.Errorf("after half a drain the node should be cordoned and have the guarded pod only; said %q", said)
		}
		allowed = true
		if err := h.node.Drain(ctx, nil); err != nil {
			t.Error(err)
		}
		h.second()
		if h.pod("guarded") != nil {
			t.Error("the guarded pod is still there")
		}
		h.bind("u3", "late")
		h.stop()
		if err := h.node.Remove(ctx); err != nil {
			t.Error(err)
		}
		leases, _ := h.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).List(ctx, metav1.ListOptions{})
		if h.office() != nil || h.pod("late") != nil || len(leases.Items) > 0 {
			t.Error("Remove left something")
		}
		if err := h.node.Remove(ctx); err != nil {
			t.Errorf("Remove cannot be repeated: %v", err)
		}
	})
}

// A controller replaces the pods that go with the node, and the scheduler may not know yet that the node is cordoned.
func TestRemoveLeavesNoPodThatWasBoundMeanwhile(t *testing.T) {
	atHome(t, func(h *home) {
		late := h.bind("u1", "first").DeepCopy()
		late.UID, late.Name = "u2", "second"
		h.stop()
		h.client.PrependReactor("delete", "nodes", func(k8stesting.Action) (bool, runtime.Object, error) {
			return false, nil, h.client.Tracker().Add(late)
		})
		if err := h.node.Remove(h.t.Context()); err != nil {
			t.Error(err)
		}
		if h.office() != nil || h.pod("first") != nil || h.pod("second") != nil {
			t.Errorf("the node is %v, and its pods %v and %v", h.office(), h.pod("first"), h.pod("second"))
		}
	})
}

func TestNodeHasTheLabelsOfItsPeerAtHome(t *testing.T) {
	t.Parallel()
	got := nodeLabels(Config{
		Name: "office" + api.VirtualNodeSuffix, Peer: "p", Contract: "c",
		Labels:     map[string]string{"tier": "gold", "peer.entente.dev/tier": "gold", "peer.entente.dev/trusted": "yes", api.LabelPrice: "0", api.LabelLatency: "2"},
		PeerLabels: map[string]string{"peer.entente.dev/tier": "iron", api.LabelLatency: "50"},
	})
	for k, want := range map[string]string{"tier": "gold", "peer.entente.dev/tier": "iron", "peer.entente.dev/trusted": "", api.LabelLatency: "50", api.LabelPrice: ""} {
		if got[k] != want {
			t.Errorf("%s is %q, want %q", k, got[k], want)
		}
	}
}

func TestHostnameLabelFits(t *testing.T) {
	t.Parallel()
	name := strings.Repeat("a", 60)
	if got := nodeLabels(Config{Name: name + api.VirtualNodeSuffix})[corev1.LabelHostname]; got != name {
		t.Errorf("it is %q", got)
	}
}
