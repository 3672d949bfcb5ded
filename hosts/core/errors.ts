/** What went wrong, where, and what to do: the base of every error that this code raises. */
export class PlutoError extends Error {
  override name = "PlutoError";
}

/** Images, modules or the selector say NaN or infinity. */
export class NotFiniteError extends PlutoError {
  override name = "NotFiniteError";
}
