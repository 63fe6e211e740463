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
	// ReasonForgottenByPeer: the peer proved its identity, refused this cluster, and reported that
	// an administrator there forgot it or that its policy ended. The peer does not say which.
	ReasonForgottenByPeer = "ForgottenByPeer"
	// ReasonDeniedByPeer: an administrator there denied this cluster.
	ReasonDeniedByPeer = "DeniedByPeer"
	// ReasonGroupUnknown: no policy there has the group.
	ReasonGroupUnknown = "GroupUnknown"
	// ReasonImpostor: it takes the name or the address of another.
	ReasonImpostor = "Impostor"
)

// TrustedOf returns the Trusted condition as it was last written, or nil. A ForeignCluster that a
// token created and that was not reconciled yet is trusted from its beginning.
func TrustedOf(fc *v1alpha1.ForeignCluster) *metav1.Condition {
	c := meta.FindStatusCondition(fc.Status.Conditions, v1alpha1.ConditionTrusted)
	if c == nil && fc.Spec.TrustBundle != "" && fc.Spec.Decision == "" && store.FoundBy(fc) == v1alpha1.SourceToken {
		return &metav1.Condition{
			Type: v1alpha1.ConditionTrusted, Status: metav1.ConditionTrue, Reason: store.ReasonJoined, LastTransitionTime: fc.CreationTimestamp,
		}
	}
	return c
}

// ForgottenByPeer is the message of ReasonForgottenByPeer.
const ForgottenByPeer = "an administrator there forgot this cluster, or a policy there that peered with it automatically ended. A policy there may peer with it again, which takes nothing here; else, to be trusted again, redeem a new token of either side with `entente join`, or meet again with `entente join HOST:PORT`; or forget the peer here too with `entente unpeer PEER --forget`"

// ReportedForgotten reports whether the peer sent that an administrator there forgot this
// cluster, and no introduction succeeded since. Then the old trust is not a reason to introduce this
// cluster again.
func ReportedForgotten(fc *v1alpha1.ForeignCluster) bool {
	c := TrustedOf(fc)
	return fc.Spec.TrustBundle != "" && c != nil && c.Status == metav1.ConditionFalse && c.Reason == ReasonForgottenByPeer &&
		(fc.Status.Introduction == nil || fc.Status.Introduction.Time.Before(&c.LastTransitionTime))
}

// Impostor returns the condition that an undecided cluster was found with the name or an endpoint
// of another one that is trusted, or nil.
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
