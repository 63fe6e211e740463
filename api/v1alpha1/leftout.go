package v1alpha1

import (
	"slices"
	"strings"
)

// AnnotationLeftOut names, separated by commas, the ForeignClusters that a
// PeeringRequest with a clusterSelector does not ask although they match, because
// an administrator ended the peering with them. Whoever takes a name off has it
// asked again.
const AnnotationLeftOut = "entente.dev/left-out"

// LeavesOut says whether a PeeringRequest does not ask a ForeignCluster although
// it matches.
func (s *PeeringRequest) LeavesOut(foreignCluster string) bool {
	return slices.Contains(s.leftOut(), foreignCluster)
}

// LeaveOut has a PeeringRequest ask a ForeignCluster no longer.
func (s *PeeringRequest) LeaveOut(foreignCluster string) {
	if s.LeavesOut(foreignCluster) {
		return
	}
	if s.Annotations == nil {
		s.Annotations = map[string]string{}
	}
	s.Annotations[AnnotationLeftOut] = strings.Join(append(s.leftOut(), foreignCluster), ",")
}

// NameConfirmed says whether an administrator chose the name of a ForeignCluster, by
// writing it, by naming it in a join or an introduction, or by the annotation.
func (fc *ForeignCluster) NameConfirmed() bool {
	return fc.Labels[LabelManaged] != Manager || fc.Annotations[AnnotationNameConfirmed] == "true"
}

// Hint says whether a ForeignCluster is there only because discovery found it: nobody
// decided about it, and it did not introduce itself.
func (fc *ForeignCluster) Hint() bool {
	return fc.Labels[LabelManaged] == Manager && fc.Annotations[AnnotationDiscovered] == "true" && fc.Status.Introduction == nil &&
		fc.Spec.TrustBundle == "" && fc.Spec.Decision == "" && fc.Spec.JoinToken == nil
}

// Disown makes a ForeignCluster one of a person, if it was a policy's. What the policy
// runs in one that is trusted goes on.
func (fc *ForeignCluster) Disown() {
	if fc.Spec.TrustBundle == "" {
		delete(fc.Labels, LabelNamespacesOf)
	}
	delete(fc.Labels, LabelAutomatic)
	delete(fc.Annotations, AnnotationAutomaticBy)
	delete(fc.Annotations, AnnotationAutomaticEnded)
}

func (s *PeeringRequest) leftOut() []string {
	return strings.FieldsFunc(s.Annotations[AnnotationLeftOut], func(r rune) bool { return r == ',' || r == ' ' })
}
