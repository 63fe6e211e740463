package vk

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/podspec"
	"github.com/entente-dev/entente/internal/podstatus"
	"github.com/entente-dev/entente/peering"
)

// claimRetry is the pause before a pod that waits for its claims is reconciled again.
const claimRetry = 2 * time.Second

func mountsClaim(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil || v.Ephemeral != nil }

// eachClaim calls f for each claim that a translated pod mounts.
func eachClaim(s *corev1.PodSpec, f func(*corev1.PersistentVolumeClaimVolumeSource)) {
	for i := range s.Volumes {
		if c := s.Volumes[i].PersistentVolumeClaim; c != nil {
			f(c)
		}
	}
}

// claims are the claims of a pod and the volumes to which they are bound, which never changes.
type claims struct {
	// volumes are the names of the volumes at the provider, by claim name.
	volumes map[string]string
	// refused is why the pod cannot run at the provider; missing is what it waits for.
	refused, missing string
}

// mount makes a translated pod mount the volumes to which its claims are bound. It returns why the
// pod cannot run at the provider, or what it waits for.
func (c claims) mount(t *corev1.Pod) (refusal *peering.Refusal, missing string) {
	eachClaim(&t.Spec, func(v *corev1.PersistentVolumeClaimVolumeSource) {
		name, ok := c.volumes[v.ClaimName]
		if !ok && c.missing == "" {
			missing = fmt.Sprintf("claim %q is not reconciled yet", v.ClaimName)
		}
		v.ClaimName = name
	})
	if c.refused != "" {
		return &peering.Refusal{Reason: peering.RefusedInvalid, Message: c.refused}, ""
	}
	return nil, strings.TrimPrefix(c.missing+"; "+missing, "; ")
}

// lookUpClaims looks up those claims of a pod that are not known yet, and requeues the pod if it
// has to wait for them.
func (n *Node) lookUpClaims(ctx context.Context, uid string) error {
	pod := n.localPod(uid)
	if pod == nil || podstatus.Terminal(pod.Status.Phase) || !slices.ContainsFunc(pod.Spec.Volumes, mountsClaim) {
		return nil
	}
	spec := pod.Spec.DeepCopy()
	podspec.EphemeralToClaims(pod.Name, spec)
	n.mu.Lock()
	known := maps.Clone(n.podState(podRef(pod)).claims.volumes)
	n.mu.Unlock()
	found := claims{volumes: known}
	news := false
	var problem error
	eachClaim(spec, func(v *corev1.PersistentVolumeClaimVolumeSource) {
		if _, ok := known[v.ClaimName]; ok || problem != nil {
			return
		}
		news = true
		problem = n.lookUpClaim(ctx, pod, v.ClaimName, &found)
	})
	if problem != nil || !news {
		return problem
	}
	n.mu.Lock()
	n.podState(podRef(pod)).claims = found
	n.mu.Unlock()
	if found.missing != "" {
		n.podQueue.AddAfter(uid, claimRetry)
	}
	return nil
}

// lookUpClaim adds one claim to those that are known.
func (n *Node) lookUpClaim(ctx context.Context, pod *corev1.Pod, name string, found *claims) error {
	claim, err := n.cfg.Client.CoreV1().PersistentVolumeClaims(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && claim.Spec.VolumeName == "" {
		found.missing = fmt.Sprintf("claim %q is not bound to a volume yet; the pod waits for that", name)
		return nil
	}
	if err != nil {
		return fmt.Errorf("read claim %s/%s: %w", pod.Namespace, name, err)
	}
	pv, err := n.cfg.Client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		found.missing = fmt.Sprintf("the volume %s of claim %q is lost", claim.Spec.VolumeName, name)
	case err != nil:
		return fmt.Errorf("read volume %s: %w", claim.Spec.VolumeName, err)
	case pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID:
		found.missing = fmt.Sprintf("the volume %s is not bound to claim %q", pv.Name, name)
	case pv.Spec.CSI == nil || pv.Spec.CSI.Driver != api.VolumeDriver:
		found.refused = fmt.Sprintf("this pod cannot run in another cluster: claim %q has a volume of this cluster; use a storage class of Entente%s", name, podspec.AtHome)
	case pv.Spec.CSI.VolumeAttributes[api.VolumePeer] != n.cfg.Peer:
		found.refused = fmt.Sprintf("this pod cannot run at this provider: the volume of claim %q is at another provider", name)
	default:
		if found.volumes == nil {
			found.volumes = map[string]string{}
		}
		found.volumes[name] = pv.Spec.CSI.VolumeHandle
	}
	return nil
}
