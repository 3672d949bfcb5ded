/** Learned state in IndexedDB: on this device, by the bundle that it was learned with. */

const DATABASE = "pluto-edge";
const TABLE = "states";

function open(): Promise<IDBDatabase> {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(DATABASE, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(TABLE);
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

async function transact<T>(mode: IDBTransactionMode, ask: (table: IDBObjectStore) => IDBRequest<T>): Promise<T> {
  const database = await open();
  try {
    return await new Promise<T>((resolve, reject) => {
      const transaction = database.transaction(TABLE, mode);
      const request = ask(transaction.objectStore(TABLE));
      transaction.oncomplete = () => resolve(request.result);
      transaction.onerror = () => reject(transaction.error);
      transaction.onabort = () => reject(transaction.error);
    });
  } finally {
    database.close();
  }
}

/** The bytes that were kept for a bundle. */
export function recall(bundle: string): Promise<Uint8Array | undefined> {
  return transact("readonly", (table) => table.get(bundle) as IDBRequest<Uint8Array | undefined>);
}

export function keep(bundle: string, bytes: Uint8Array): Promise<unknown> {
  return transact("readwrite", (table) => table.put(bytes, bundle));
}

export function forget(bundle: string): Promise<unknown> {
  return transact("readwrite", (table) => table.delete(bundle));
}
