package move

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/entente-dev/entente/cmd/entente/internal/storage"
	"github.com/entente-dev/entente/internal/volumecopy"
)

// progress describes how far a copy is.
func progress(s *volumecopy.Status) string {
	what := "the copy"
	switch s.Phase {
	case volumecopy.Reading:
		what = fmt.Sprintf("both sides to read their volumes (%s read)", Bytes(s.Bytes))
	case volumecopy.Copying:
		what = fmt.Sprintf("the copy, pass %d (%s in %d files)", s.Pass, Bytes(s.Bytes), s.Files)
	case volumecopy.Connecting:
		what = "the sender to reach the receiver"
	default:
	}
	if s.Problem != "" {
		what += ": " + s.Problem
	}
	return what
}

// Bytes is a size for people.
func Bytes(n int64) string {
	const units = "KMGTP"
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	f, i := float64(n)/(1<<10), 0
	for f >= 1<<10 && i < len(units)-1 {
		f, i = f/(1<<10), i+1
	}
	return fmt.Sprintf("%.1f %ciB", f, units[i])
}

func podNames(pods []corev1.Pod) string { return storage.Names(pods) }
