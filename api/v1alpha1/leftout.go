package v1alpha1

import (
	"slices"
	"strings"
)

// AnnotationLeftOut names, separated by commas, the ForeignClusters that a
// ResourceSlice with a clusterSelector does not ask although they match, because
// an administrator ended the peering with them. Whoever takes a name off has it
// asked again.
const AnnotationLeftOut = "entente.dev/left-out"

// LeavesOut says whether a ResourceSlice does not ask a ForeignCluster although
// it matches.
func (s *ResourceSlice) LeavesOut(foreignCluster string) bool {
	return slices.Contains(s.leftOut(), foreignCluster)
}

// LeaveOut has a ResourceSlice ask a ForeignCluster no longer.
func (s *ResourceSlice) LeaveOut(foreignCluster string) {
	if s.LeavesOut(foreignCluster) {
		return
	}
	if s.Annotations == nil {
		s.Annotations = map[string]string{}
	}
	s.Annotations[AnnotationLeftOut] = strings.Join(append(s.leftOut(), foreignCluster), ",")
}

func (s *ResourceSlice) leftOut() []string {
	return strings.FieldsFunc(s.Annotations[AnnotationLeftOut], func(r rune) bool { return r == ',' || r == ' ' })
}
