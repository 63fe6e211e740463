package vk

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/podspec"
	"github.com/entente-dev/entente/peering"
)

func mounts(claim string) corev1.VolumeSource {
	return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim, ReadOnly: true}}
}

func TestClaimsBecomeVolumesOfTheProvider(t *testing.T) {
	pod := func() *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "db-0"}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{
			{Name: "data", VolumeSource: mounts("data-db-0")},
			{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
			{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		}}}
	}
	both := map[string]string{"data-db-0": "entente-1", "db-0-scratch": "entente-2"}
	for name, tc := range map[string]struct {
		claims  claims
		refused string
		waits   string
	}{
		"both are known":     {claims: claims{volumes: both}},
		"none was looked up": {waits: `"db-0-scratch" is not reconciled yet`},
		"one is not bound":   {claims: claims{volumes: map[string]string{"data-db-0": "entente-1"}, missing: "claim x is not bound"}, waits: "claim x is not bound"},
		"one is elsewhere":   {claims: claims{volumes: both, refused: "at another provider"}, refused: "at another provider"},
	} {
		t.Run(name, func(t *testing.T) {
			tr, refusal := podspec.Leave(pod())
			if refusal != nil {
				t.Fatal(refusal)
			}
			refusal, waits := tc.claims.mount(tr.Pod)
			if (refusal != nil) != (tc.refused != "") || refusal != nil && !strings.Contains(refusal.Message, tc.refused) || (waits != "") != (tc.waits != "") || !strings.Contains(waits, tc.waits) {
				t.Fatalf("refusal %v, waits %q", refusal, waits)
			}
			if tc.refused+tc.waits != "" {
				return
			}
			v := tr.Pod.Spec.Volumes
			if c := v[0].PersistentVolumeClaim; c.ClaimName != "entente-1" || !c.ReadOnly {
				t.Errorf("data is %+v", c)
			}
			if c := v[1].PersistentVolumeClaim; c == nil || c.ClaimName != "entente-2" || v[1].Ephemeral != nil || v[2].EmptyDir == nil {
				t.Errorf("volumes %+v", v)
			}
		})
	}
}

// claim makes a claim at home, and the volume that it is bound to.
func (h *home) claim(name, driver, peer string) {
	h.t.Helper()
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name)}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv-" + name},
	}
	if _, err := h.client.CoreV1().PersistentVolumeClaims("shop").Create(h.t.Context(), claim, metav1.CreateOptions{}); err != nil {
		h.t.Fatal(err)
	}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name}, Spec: corev1.PersistentVolumeSpec{
		ClaimRef: &corev1.ObjectReference{Namespace: "shop", Name: name, UID: claim.UID},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
			Driver: driver, VolumeHandle: "entente-" + name, VolumeAttributes: map[string]string{api.VolumePeer: peer},
		}},
	}}
	if _, err := h.client.CoreV1().PersistentVolumes().Create(h.t.Context(), pv, metav1.CreateOptions{}); err != nil {
		h.t.Fatal(err)
	}
}

func withClaim(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: mounts(name)}} }
}

func (h *home) sent(uid string) (claim string) {
	h.remote.locked(func() {
		for ref, o := range h.remote.wants {
			var pod corev1.Pod
			if ref.UID == uid && json.Unmarshal(o.JSON, &pod) == nil && len(pod.Spec.Volumes) == 1 {
				claim = pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName
			}
		}
	})
	return claim
}

func TestAPodCrossesWithTheVolumeOfItsClaim(t *testing.T) {
	atHome(t, func(h *home) {
		h.bind("u1", "db-0", withClaim("data"))
		h.wantPhase("db-0", corev1.PodPending, reasonMissing)
		h.claim("data", api.VolumeDriver, h.node.cfg.Peer)
		time.Sleep(2 * claimRetry)
		h.second()
		h.wantPhase("db-0", corev1.PodRunning, "")
		if got := h.sent("u1"); got != "entente-data" {
			t.Errorf("it crossed with %q", got)
		}

		// After a restart it crosses as it did, or not at all.
		h.stop()
		h.client.ClearActions()
		h.start()
		h.remote.connect(true)
		time.Sleep(time.Minute)
		synctest.Wait()
		h.remote.locked(func() {
			if len(h.remote.applies)+len(h.remote.deletes) > 0 {
				t.Errorf("after the restart: applied %v, deleted %v", h.remote.applies, h.remote.deletes)
			}
		})
		if got := h.sent("u1"); got != "entente-data" {
			t.Errorf("after the restart it is wanted with %q", got)
		}
	})
}

func TestAPodWithAVolumeElsewhereIsNotSent(t *testing.T) {
	for name, words := range map[string]string{"home": "a volume of this cluster", "another": "at another provider"} {
		t.Run(name, func(t *testing.T) {
			atHome(t, func(h *home) {
				driver := map[string]string{"home": "example.com/disk", "another": api.VolumeDriver}[name]
				h.claim("data", driver, "somebody")
				h.bind("u1", "db-0", withClaim("data"))
				if pod := h.wantPhase("db-0", corev1.PodPending, reasonNotOffloaded); !strings.Contains(pod.Status.Message, words) {
					t.Errorf("its status says %q, want %q", pod.Status.Message, words)
				}
				h.remote.locked(func() {
					for ref := range h.remote.wants {
						if ref.Kind == peering.KindPod {
							t.Errorf("%s was sent", ref)
						}
					}
				})
			})
		})
	}
}
