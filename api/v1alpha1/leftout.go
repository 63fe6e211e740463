package v1alpha1

import (
	"slices"
	"strings"
)

// AnnotationExcludedClusters names, separated by commas, the ForeignClusters that a PeeringRequest with a clusterSelector
// does not ask although they match, because an administrator ended the peering with them. Removing a name makes the
// request ask it again.
const AnnotationExcludedClusters = "entente.dev/excluded-clusters"

// LeavesOut reports whether a PeeringRequest does not ask a ForeignCluster although it matches.
func (s *PeeringRequest) LeavesOut(foreignCluster string) bool {
	return slices.Contains(s.leftOut(), foreignCluster)
}

// LeaveOut keeps a PeeringRequest from asking a ForeignCluster.
func (s *PeeringRequest) LeaveOut(foreignCluster string) {
	if s.LeavesOut(foreignCluster) {
		return
	}
	if s.Annotations == nil {
		s.Annotations = map[string]string{}
	}
	s.Annotations[AnnotationExcludedClusters] = strings.Join(append(s.leftOut(), foreignCluster), ",")
}

// NameConfirmed reports whether an administrator chose the name of a ForeignCluster, by writing it, by naming it in
// a join or an introduction, or by the annotation.
func (fc *ForeignCluster) NameConfirmed() bool {
	return fc.Labels[LabelManaged] != Manager || fc.Annotations[AnnotationNameConfirmed] == "true"
}

// Hint reports whether a ForeignCluster exists only because discovery found it: it is not decided yet, and did not
// introduce itself.
func (fc *ForeignCluster) Hint() bool {
	return fc.Labels[LabelManaged] == Manager && fc.Annotations[AnnotationDiscovered] == "true" && fc.Status.Introduction == nil &&
		fc.Spec.TrustBundle == "" && fc.Spec.Decision == "" && fc.Spec.JoinToken == nil
}

// Disown turns a policy's ForeignCluster into an administrator's. What the policy runs in a trusted one continues.
func (fc *ForeignCluster) Disown() {
	if fc.Spec.TrustBundle == "" {
		delete(fc.Labels, LabelNamespacesOf)
	}
	delete(fc.Labels, LabelAutomatic)
	delete(fc.Annotations, AnnotationAutomaticBy)
	delete(fc.Annotations, AnnotationAutomaticEnded)
}

func (s *PeeringRequest) leftOut() []string {
	return strings.FieldsFunc(s.Annotations[AnnotationExcludedClusters], func(r rune) bool { return r == ',' || r == ' ' })
}
