package trust

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/store"
)

// Reasons of an Attempt, and of the Trusted condition.
const (
	// ReasonDuplicate: the cluster is known here as another object.
	ReasonDuplicate = "Duplicate"
	// ReasonForgottenByPeer: the peer proved who it is, refused this cluster, and said that
	// an administrator there forgot it, or that its policy ended: of the two it does not
	// hear which.
	ReasonForgottenByPeer = "ForgottenByPeer"
	// ReasonDeniedByPeer: an administrator there denied this cluster.
	ReasonDeniedByPeer = "DeniedByPeer"
	// ReasonGroupUnknown: no policy there has the group.
	ReasonGroupUnknown = "GroupUnknown"
	// ReasonImpostor: it takes the name or the address of another.
	ReasonImpostor = "Impostor"
)

// TrustedOf returns the Trusted condition as it was last written; nil if none was.
// One that a token made, and that nobody looked at yet, was trusted from its
// beginning.
func TrustedOf(fc *v1alpha1.ForeignCluster) *metav1.Condition {
	c := meta.FindStatusCondition(fc.Status.Conditions, v1alpha1.ConditionTrusted)
	if c == nil && fc.Spec.TrustBundle != "" && fc.Spec.Decision == "" && store.FoundBy(fc) == v1alpha1.FoundToken {
		return &metav1.Condition{
			Type: v1alpha1.ConditionTrusted, Status: metav1.ConditionTrue, Reason: store.ReasonJoined, LastTransitionTime: fc.CreationTimestamp,
		}
	}
	return c
}

// ForgottenByPeer is the message of ReasonForgottenByPeer.
const ForgottenByPeer = "an administrator there forgot this cluster, or a policy there that peered with it by itself ended. A policy there may peer with it again, which takes nothing here; else, to be trusted again, redeem a new token of either side with `entente join`, or meet again with `entente join HOST:PORT`; or forget the peer here too with `entente unpeer PEER --forget`"

// HeardForgotten says whether the peer said that an administrator there forgot this
// cluster, and no introduction succeeded since. Then this cluster introduces itself no
// more because of the trust that was.
func HeardForgotten(fc *v1alpha1.ForeignCluster) bool {
	c := TrustedOf(fc)
	return fc.Spec.TrustBundle != "" && c != nil && c.Status == metav1.ConditionFalse && c.Reason == ReasonForgottenByPeer &&
		(fc.Status.Introduction == nil || fc.Status.Introduction.Time.Before(&c.LastTransitionTime))
}

// Impostor says whether what was found of a cluster that nobody decided about holds of
// another one that is trusted: its name, or where it is.
func Impostor(fc *v1alpha1.ForeignCluster, now []v1alpha1.Sighting, trusted []v1alpha1.ForeignCluster) *metav1.Condition {
	if !store.Pending(fc) {
		return nil
	}
	is := func(reason, message string) *metav1.Condition {
		c := store.Condition(v1alpha1.ConditionImpostor, metav1.ConditionTrue, reason, message+", and has another key. Trust neither this one nor the place where it was found before you know why")
		return &c
	}
	for i := range trusted {
		other := &trusted[i]
		for _, s := range now {
			if s.Name != "" && strings.EqualFold(s.Name, other.Name) {
				return is("NameOfAnother", fmt.Sprintf("it calls itself %q as the peer %s does", s.Name, other.Name))
			}
			for _, e := range s.Endpoints {
				if slices.Contains(other.Spec.Endpoints, e) {
					return is("EndpointOfAnother", fmt.Sprintf("it is said to be at %s where the peer %s is", e, other.Name))
				}
			}
		}
	}
	return nil
}
