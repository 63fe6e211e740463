package namespaces

const (
	// maxMessage is how long the message of a NamespaceOffloading is at most.
	maxMessage = 1024
	// namespaceWorkers is how many namespaces are reconciled concurrently: one whose many pods leave delays no other.
	namespaceWorkers = 4
)
