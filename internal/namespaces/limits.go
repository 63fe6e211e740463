package namespaces

// maxMessage is how long the message of a NamespaceOffloading is at most.
const maxMessage = 1024
